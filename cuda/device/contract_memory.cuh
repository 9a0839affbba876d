// Elements that the generated function of a product reads and stores itself (contract.cuh).
#pragma once
#include "device/partial.cuh"

namespace kfusion::device {

/// 0 outside, where nothing is read.
template <class T>
KF_DEVICE Compute<T> element(const T* p, bool inside) {
  Vector<T, 1> v{};
  if (inside) load_element(v, 0, p);
  return get(v, 0);
}

/// Rounds; outside nothing is stored.
template <class T>
KF_DEVICE void store_element(T* p, Compute<T> value, bool inside) {
  if (!inside) return;
  if constexpr (sizeof(T) == 1) {
    p->byte = value != 0;
  } else if constexpr (sizeof(T) == 2) {
    p->bits = static_cast<u16>(pack_pair<T>(value, 0.0f));
  } else {
    *p = value;
  }
}

namespace scalar {

/// The largest (or smallest) of some values, a NaN where there is one, and the first position that has it.
template <class A, bool kLargest>
struct Found {
  A best = kLargest ? lowest<A>() : highest<A>();
  int at = 0x7fffffff;

  KF_DEVICE void look(A value) { best = kLargest ? maximum(best, value) : minimum(best, value); }
  /// Gives both the better one, after both have looked. Returns whether it could be better than `before`; else its
  /// position does not matter.
  static KF_DEVICE bool settle(Found& a, Found& b, const Found& before) {
    a.look(b.best);
    b.best = a.best;
    return kLargest ? !(a.best < before.best) : !(a.best > before.best);
  }
  /// A second time; `best` is NaN only where a value is.
  KF_DEVICE void seek(A value, int position) {
    if ((value == best || value != value) && position < at) at = position;
  }
  KF_DEVICE void merge(const Found& b) {
    const bool own = best != best, other = b.best != b.best;  // not a number
    const bool better = other ? !own : !own && (kLargest ? b.best > best : b.best < best);
    const bool equal = (own && other) || b.best == best;
    at = better || (equal && b.at < at) ? b.at : at;
    best = better ? b.best : best;
  }
};

}  // namespace scalar

}  // namespace kfusion::device
