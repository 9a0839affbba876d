// The device functions of ReLU + LayerNorm, and the op that the row skeleton makes one kernel of.
//   r = max(x, 0);  y = (r - mean(r)) / sqrt(var(r) + eps) [* weight] [+ bias]      (biased variance)
#pragma once
#include "device/row.cuh"

namespace kfusion::device {

/// weight and bias: either, both or none present; stored as P where the access needs to know, void: both absent.
template <class T, class P>
struct Affine {
  static constexpr bool kKeeps = true;
  Column weight, bias;

  template <class Access>
  struct Fetched {
    typename Access::template Fetched<P> weight, bias;
  };
  /// The block's columns to shared memory, where the host found room for them.
  template <class Access>
  KF_DEVICE void keep(char* shared, const Span& block) {
    if (weight.keep_at >= 0) Access::template keep<P>(weight, shared + weight.keep_at, block);
    if (bias.keep_at >= 0) Access::template keep<P>(bias, shared + bias.keep_at, block);
  }
  /// What lies at slot k. Both are asked for before either is used.
  template <class Access>
  KF_DEVICE Fetched<Access> fetch(const Span& s, int k) const {
    return {Access::template fetch<P>(weight, s, k), Access::template fetch<P>(bias, s, k)};
  }
  /// v * weight + bias
  template <class Access>
  KF_DEVICE void apply(Compute<T> (&v)[kLanes<T>], const Fetched<Access>& fetched) const {
    Compute<T> p[kLanes<T>];
    if (weight.data) {
      Access::template values<P>(p, fetched.weight, weight);
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) v[j] *= p[j];
    }
    if (bias.data) {
      Access::template values<P>(p, fetched.bias, bias);
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) v[j] += p[j];
    }
  }
};
template <class T>
struct Affine<T, void> {
  static constexpr bool kKeeps = false;
  Column weight, bias;

  template <class>
  struct Fetched {};
  template <class Access>
  KF_DEVICE Fetched<Access> fetch(const Span&, int) const {
    return {};
  }
  template <class Access>
  KF_DEVICE void apply(Compute<T> (&)[kLanes<T>], const Fetched<Access>&) const {}
};

template <class T, class P>
struct ReluLayernorm {
  using C = Compute<T>;
  using Parameters = Affine<T, P>;
  struct Row {
    C mean, scale;
  };
  Parameters parameters;
  C eps;

  KF_DEVICE C value(C x) const { return relu(x); }
  KF_DEVICE Row row(const Moments<C>& m, C n) const { return {m.mean, C(1) / square_root(m.m2 / n + eps)}; }
  template <class Access>
  KF_DEVICE void output(C (&v)[kLanes<T>], const Row& row,
                        const typename Parameters::template Fetched<Access>& fetched) const {
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] = (v[j] - row.mean) * row.scale;
    parameters.template apply<Access>(v, fetched);
  }
};

}  // namespace kfusion::device
