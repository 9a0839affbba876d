// Elementwise passes over contiguous elements: y[i] = op(x[i]). Compiled once per instruction set.
#pragma once
#include "cpu/edge_line.hpp"
#include "cpu/relu_layernorm/row_sums.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <class E, class Op>
KF_INLINE void sweep_part(const std::byte* x, std::byte* y, std::int64_t i, int count, const Op& op) {
  const auto v = op.part(load_values<E>(x + i * kItem<E>, count), i, count);
  store_first(y, E::narrow(v), count * kItem<E>);
}

/// Fewer than a line's elements, from i to end; y: where the first of them goes.
template <class E, class Op>
KF_INLINE void sweep_edge(const std::byte* x, std::byte* y, std::int64_t i, std::int64_t end, const Op& op) {
  for (; i + kLanes<E> <= end; i += kLanes<E>, y += kLanes<E> * kItem<E>)
    store(y, E::narrow(op.all(load_values<E>(x + i * kItem<E>), i)));
  if (i < end) sweep_part<E>(x, y, i, static_cast<int>(end - i), op);
}
template <class E, class Op>
KF_INLINE void sweep_edge(const Span& s, std::int64_t i, std::int64_t end, const Op& op) {
  if (i == end) return;
  std::byte* const y = s.y + i * kItem<E>;
  sweep_edge<E>(s.x, s.edge ? place(*s.edge, y, (end - i) * kItem<E>) : y, i, end, op);
}

/// Whole lines, from i on, with meanwhile() before every block of them. Returns where it stopped.
template <class E, bool kStream, class Meanwhile, class Op>
KF_INLINE std::int64_t sweep_lines(const Span& s, std::int64_t i, Meanwhile& meanwhile, const Op& op) {
  constexpr int kLine = kLineBytes / kItem<E>, kBlock = kBlockLines * kLine;
  const std::byte* x = s.x + i * kItem<E>;  // addresses that move on: see row_sums.hpp
  std::byte* y = s.y + i * kItem<E>;
  const std::int64_t size = s.size;
  const auto line = [&](std::int64_t first) {
    for (std::int64_t at = first; at < first + kLine; at += kLanes<E>) {
      const auto v = E::narrow(op.all(load_values<E>(x + at * kItem<E>), i + at));
      if constexpr (kStream) {
        stream(y + at * kItem<E>, v);
      } else {
        store(y + at * kItem<E>, v);
      }
    }
  };
  for (; i + kBlock <= size; i += kBlock, x += kBlockBytes, y += kBlockBytes) {
    meanwhile();
    for (int l = 0; l < kBlock; l += kLine) line(l);
  }
  if (i < size) meanwhile();
  for (; i + kLine <= size; i += kLine, x += kLineBytes, y += kLineBytes) line(0);
  return i;
}

/// A vector is read before it is written, so y may be x. What streams begins at a line of y.
template <class E, class Meanwhile, class Op>
KF_INLINE void sweep(const Span& s, Meanwhile meanwhile, const Op& op) {
  const std::int64_t phase = static_cast<std::int64_t>(-address(s.y) & (kLineBytes - 1));
  std::int64_t i = 0;
  if (s.stream && phase % kItem<E> == 0) {
    const std::int64_t head = phase / kItem<E>;
    i = head < s.size ? head : s.size;
    sweep_edge<E>(s, 0, i, op);
    i = sweep_lines<E, true>(s, i, meanwhile, op);
    return sweep_edge<E>(s, i, s.size, op);
  }
  i = sweep_lines<E, false>(s, 0, meanwhile, op);
  sweep_edge<E>(s.x, s.y + i * kItem<E>, i, s.size, op);
}

template <class E, bool kAffine>
struct AffineOp {
  Affine affine;

  template <class Load>
  KF_INLINE ValueOf<E> apply(ValueOf<E> v, std::int64_t i, Load load_parameters) const {
    constexpr int kBytes = sizeof(typename E::Compute);
    if constexpr (kAffine)
      v = v * load_parameters(affine.weight + i * kBytes) + load_parameters(affine.bias + i * kBytes);
    return v;
  }
  KF_INLINE ValueOf<E> all(const ValueOf<E>& v, std::int64_t i) const {
    return apply(v, i, [](const std::byte* p) { return load<ValueOf<E>>(p); });
  }
  KF_INLINE ValueOf<E> part(const ValueOf<E>& v, std::int64_t i, int count) const {
    const int bytes = count * static_cast<int>(sizeof(typename E::Compute));
    return apply(v, i, [bytes](const std::byte* p) { return load_first<ValueOf<E>>(p, bytes); });
  }
};

/// first(v), then the affine part.
template <class E, class First, class Affines>
struct Chain {
  First first;
  Affines affine;
  KF_INLINE ValueOf<E> all(const ValueOf<E>& v, std::int64_t i) const { return affine.all(first(v), i); }
  KF_INLINE ValueOf<E> part(const ValueOf<E>& v, std::int64_t i, int n) const { return affine.part(first(v), i, n); }
};

template <class E, bool kAffine, class Meanwhile, class First>
KF_INLINE void sweep_with(const Span& s, const Meanwhile& meanwhile, const Affine& affine, const First& first) {
  using Affines = AffineOp<E, kAffine>;
  sweep<E>(s, meanwhile, Chain<E, First, Affines>{first, {affine}});
}

template <class E, class Meanwhile, class First>
KF_INLINE void sweep_affine(const Span& s, const Meanwhile& meanwhile, const Affine& affine, const First& first) {
  if (affine.weight) return sweep_with<E, true>(s, meanwhile, affine, first);
  sweep_with<E, false>(s, meanwhile, affine, first);
}

/// The mean is subtracted in two parts, its rounded value and the remainder: the first difference is exact where x
/// is near the mean, so that a large mean costs no digits.
template <class E, class Meanwhile>
KF_INLINE void normalize_span(const Span& s, const Meanwhile& meanwhile, const RowScale& scale, const Affine& affine) {
  using C = typename E::Compute;
  const C mean = static_cast<C>(scale.mean), rest = static_cast<C>(scale.mean - mean),
          rstd = static_cast<C>(scale.rstd);
  sweep_affine<E>(s, meanwhile, affine, [=](const ValueOf<E>& v) { return ((relu(v) - mean) - rest) * rstd; });
}

/// A sweep's `meanwhile` that only fetches. Not a lambda: g++ takes a function that only prefetches for one without
/// effect, and drops the call unless it is inlined from the start.
template <int kLines>
struct Fetching {
  Fetch<kLines> fetch;
  KF_INLINE void operator()() { fetch.advance(); }
};
template <int kLines>
KF_INLINE Fetching<kLines> fetching(Fetch<kLines> fetch) {
  return {fetch};
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
