// Functions of floats by the hardware's approximations, for what is stored in a half type, whose rounding is larger
// than their errors, and for values of a row. CUDA's own take more instructions than memory leaves time for. Results
// that are subnormal as floats are 0: those of bfloat16 below 2^-126; float16 has none so small.
#pragma once
#include "device/scalar.cuh"

namespace kfusion::device::scalar {

inline constexpr float kLog2OfE = 1.4426950408889634f;

#ifdef __CUDA_ARCH__
#define KF_APPROXIMATION(function, instruction, otherwise) \
  KF_DEVICE float function(float x) {                      \
    float y;                                               \
    asm(instruction ".f32 %0, %1;" : "=f"(y) : "f"(x));    \
    return y;                                              \
  }
#else
#define KF_APPROXIMATION(function, instruction, otherwise) \
  KF_DEVICE float function(float x) { return otherwise; }
#endif
/// 2^x to 2^-22 of itself, and 0 where a float would be subnormal.
KF_APPROXIMATION(quick_exp2, "ex2.approx.ftz", exp2(x))
/// 1 / x to 2^-23 of itself, and 0 where a float would be subnormal.
KF_APPROXIMATION(quick_reciprocal, "rcp.approx.ftz", 1.0f / x)
KF_DEVICE double quick_reciprocal(double x) { return 1.0 / x; }
/// 1 / sqrt(x) to 2^-22 of itself.
KF_APPROXIMATION(quick_rsqrt, "rsqrt.approx", 1.0f / sqrt(x))
KF_DEVICE double quick_rsqrt(double x) { return 1.0 / sqrt(x); }
#undef KF_APPROXIMATION

/// exp(x) to 2^-22 + |x| 2^-24 of itself: also for sums with an exponential of 0.
KF_DEVICE float quick_exp(float x) { return quick_exp2(x * kLog2OfE); }
KF_DEVICE double quick_exp(double x) { return exp(x); }

/// 1 / (1 + exp(-x)) to 2^-21 + |x| 2^-24 of itself.
KF_DEVICE float quick_sigmoid(float x) { return quick_reciprocal(1.0f + quick_exp(-x)); }

/// tanh(x) to 2^-18 of itself: 1 - 2 / (1 + exp(2 x)), and near 0, where that cancels, x - x^3 / 3 + 2 x^5 / 15.
KF_DEVICE float quick_tanh(float x) {
  const float square = x * x;
  const float near = x * fmaf(square, fmaf(square, 2.0f / 15, -1.0f / 3), 1.0f);
  const float far = fmaf(-2.0f, quick_reciprocal(1.0f + quick_exp2(2 * kLog2OfE * x)), 1.0f);
  return fabs(x) < 0.125f ? near : far;
}

/// 1 + tanh(x) to 2^-20 + |x| 2^-23 of itself, also where tanh is near -1.
KF_DEVICE float quick_one_plus_tanh(float x) {
  return quick_reciprocal(fmaf(0.5f, quick_exp2(-2 * kLog2OfE * x), 0.5f));
}

/// erf(x) to 5e-7, and near 0 to 2^-15 of itself, there by 2 / sqrt(pi) (x - x^3 / 3). Source: Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 7.1.26. Where 1 is added to a result near -1, as GELU does, that is an error of
/// the sum: below about -4, where GELU itself is less than 2e-4, it is more than the rounding of a half type.
KF_DEVICE float quick_erf(float x) {
  const float square = x * x, near = x * fmaf(square, -0.376126389f, 1.128379167f);
  const float t = quick_reciprocal(fmaf(0.3275911f, fabs(x), 1.0f));
  float sum = fmaf(t, 1.061405429f, -1.453152027f);
  sum = fmaf(t, sum, 1.421413741f);
  sum = fmaf(t, sum, -0.284496736f);
  sum = fmaf(t, sum, 0.254829592f);
  const float far = fmaf(-t * sum, quick_exp2(-kLog2OfE * square), 1.0f);
  return fabs(x) < 1.0f / 64 ? near : copysign(far, x);
}

// ---- quotients by a value that many share ---------------------------------------------------------------------------

/// A divisor that many share, and its reciprocal: both brought near 1 by a power of two where it is far from it.
template <class T>
struct Divisor {
  T scale, d, r;
  KF_DEVICE explicit Divisor(T divisor) {
    constexpr T kFar = T(0x1p40), kFarther = T(0x1p100);
    const T size = fabs(divisor);
    scale = size > kFarther          ? T(1) / kFarther
            : size > kFar            ? T(1) / kFar
            : size < T(1) / kFarther ? kFarther
            : size < T(1) / kFar     ? kFar
                                     : T(1);
    d = divisor * scale;
    r = T(1) / d;
  }
  Divisor() = default;
};
/// x / d, rounded as a division is: the error of x r is found and taken away (P. W. Markstein, "Computation of
/// elementary functions on the IBM RISC System/6000 processor", 1990). Without a division for all else, which would
/// make the code of columns twice as long: where x or the quotient is beyond 2^-100 or 2^100, to a last bit or two.
template <class T>
KF_DEVICE T quotient(T x, const Divisor<T>& by) {
  constexpr T kLow = T(0x1p-100), kHigh = T(0x1p100);
  const T scaled = x * by.scale, q = scaled * by.r, size = fabs(q);
  const T refined = fused_multiply_add(fused_multiply_add(-q, by.d, scaled), by.r, q);
  return size > kLow && fabs(scaled) > kLow && size < kHigh ? refined : q;
}

/// A divisor for half types: it and its reciprocal are brought near 1 by a power of two where they are far from it.
template <class T>
struct QuickDivisor {
  T scale, r;
  KF_DEVICE explicit QuickDivisor(T divisor) {
    const T size = fabs(divisor);
    constexpr T kFar = T(0x1p100);
    scale = size > kFar ? T(1) / kFar : size < T(1) / kFar ? kFar : T(1);
    r = quick_reciprocal(divisor * scale);
  }
  QuickDivisor() = default;
};
/// x / d to a last bit or two.
template <class T>
KF_DEVICE T quotient(T x, const QuickDivisor<T>& d) {
  return x * d.scale * d.r;
}

}  // namespace kfusion::device::scalar
