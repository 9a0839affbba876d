// Functions that go through libm: a register at a time where the system has such functions, else lane by lane.
#pragma once
#include "cpu/vector/vector.hpp"
#include "cpu/vector_libm.hpp"

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
#define KF_REGISTER(name, function)                             \
  KF_LANES(DoubleVec, name##_by_lanes, function)                \
  KF_NO_INLINE DoubleVec name(DoubleVec x) {                    \
    const auto f = vector_libm(kVectorBytes).function;          \
    if (f == nullptr) return name##_by_lanes(x);                \
    return DoubleVec(reinterpret_cast<F64s (*)(F64s)>(f)(x.v)); \
  }
#define KF_REGISTERS(name, function)                                       \
  KF_LANES_OF_TWO(DoubleVec, name##_by_lanes, function)                    \
  KF_NO_INLINE DoubleVec name(DoubleVec x, DoubleVec y) {                  \
    const auto f = vector_libm(kVectorBytes).function;                     \
    if (f == nullptr) return name##_by_lanes(x, y);                        \
    return DoubleVec(reinterpret_cast<F64s (*)(F64s, F64s)>(f)(x.v, y.v)); \
  }

KF_REGISTER(acos, acos)
KF_REGISTER(acosh, acosh)
KF_REGISTER(asin, asin)
KF_REGISTER(asinh, asinh)
KF_REGISTER(atan, atan)
KF_REGISTER(atanh, atanh)
KF_REGISTER(cos, cos)
KF_REGISTER(cosh, cosh)
KF_REGISTER(erf, erf)
KF_REGISTER(sin, sin)
KF_REGISTER(sinh, sinh)
KF_REGISTER(tan, tan)
KF_REGISTERS(atan2, atan2)
KF_REGISTERS(hypot_of_ordered, hypot)
KF_REGISTERS(power_of_floats, pow)
KF_LANES_OF_TWO(DoubleVec, remainder_of_division, fmod)

KF_LANES(FloatVec, sin_of_large, sinf)
KF_LANES(FloatVec, cos_of_large, cosf)
KF_LANES(FloatVec, tan_of_large, tanf)
KF_LANES_OF_TWO(FloatVec, remainder_of_large, fmodf)
#undef KF_LANES
#undef KF_LANES_OF_TWO
#undef KF_REGISTER
#undef KF_REGISTERS

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
