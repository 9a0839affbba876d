// Elements that the generated function of a product reads and stores itself (contract.cuh).
#pragma once
#include "device/vector.cuh"

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

}  // namespace kfusion::device
