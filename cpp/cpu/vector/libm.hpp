// Functions that go through libm, lane by lane.
#pragma once
#include "cpu/vector/vector.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

// Not inlined: the calls cost far more than the registers saved around them.
#define KF_NO_INLINE inline __attribute__((noinline))
#define KF_LANES(V, name, function)                                            \
  KF_NO_INLINE V name(V x) {                                                   \
    for (int i = 0; i < V::kCount; ++i) x.v[i] = __builtin_##function(x.v[i]); \
    return x;                                                                  \
  }
#define KF_LANES_OF_TWO(V, name, function)                                             \
  KF_NO_INLINE V name(V x, V y) {                                                      \
    for (int i = 0; i < V::kCount; ++i) x.v[i] = __builtin_##function(x.v[i], y.v[i]); \
    return x;                                                                          \
  }

KF_LANES(DoubleVec, acos, acos)
KF_LANES(DoubleVec, acosh, acosh)
KF_LANES(DoubleVec, asin, asin)
KF_LANES(DoubleVec, asinh, asinh)
KF_LANES(DoubleVec, atan, atan)
KF_LANES(DoubleVec, atanh, atanh)
KF_LANES(DoubleVec, cos, cos)
KF_LANES(DoubleVec, cosh, cosh)
KF_LANES(DoubleVec, erf, erf)
KF_LANES(DoubleVec, sin, sin)
KF_LANES(DoubleVec, sinh, sinh)
KF_LANES(DoubleVec, tan, tan)
KF_LANES_OF_TWO(DoubleVec, atan2, atan2)
KF_LANES_OF_TWO(DoubleVec, hypot, hypot)
KF_LANES_OF_TWO(DoubleVec, power_of_floats, pow)
KF_LANES_OF_TWO(DoubleVec, remainder_of_division, fmod)

KF_LANES(FloatVec, sin_of_large, sinf)
KF_LANES(FloatVec, cos_of_large, cosf)
KF_LANES(FloatVec, tan_of_large, tanf)
KF_LANES_OF_TWO(FloatVec, remainder_of_large, fmodf)
#undef KF_LANES
#undef KF_LANES_OF_TWO

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
