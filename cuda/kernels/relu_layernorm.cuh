// The device functions of ReLU + LayerNorm, and the op that the row skeleton makes one kernel of.
//   r = max(x, 0);  y = (r - mean(r)) / sqrt(var(r) + eps) [* weight] [+ bias]      (biased variance)
#pragma once
#include "device/row.cuh"

namespace kfusion::device {

/// v * weight + bias at the columns of slot k, each where present. The parameters are read once per row, through L1:
/// keeping them in registers would halve the row that a team can hold, and the matrix does not displace them there
/// (its loads do not allocate in L1).
template <class T, class Access>
KF_DEVICE void affine(Compute<T> (&v)[kLanes<T>], const Column& weight, const Column& bias, const Span& s, int k) {
  Compute<T> p[kLanes<T>];
  if (weight.data) {
    Access::columns(p, weight, s, k);
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] *= p[j];
  }
  if (bias.data) {
    Access::columns(p, bias, s, k);
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] += p[j];
  }
}

template <class T, bool kAffine>
struct ReluLayernorm {
  using C = Compute<T>;
  struct Row {
    C mean, scale;
  };
  Column weight, bias;
  C eps;

  KF_DEVICE C value(C x) const { return relu(x); }
  KF_DEVICE Row row(const Moments<C>& m, C n) const { return {m.mean, C(1) / square_root(m.m2 / n + eps)}; }
  template <class Access>
  KF_DEVICE void output(C (&v)[kLanes<T>], const Row& row, const Span& s, int k) const {
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] = (v[j] - row.mean) * row.scale;
    if constexpr (kAffine) affine<T, Access>(v, weight, bias, s, k);
  }
};

}  // namespace kfusion::device
