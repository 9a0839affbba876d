// Functions of libm that generated code calls: by a table of pointers that a kernel is given, so that its object code
// names no symbol and can be kept on disk.
#pragma once
#include "cpu/machine_code/target.hpp"

namespace kfusion::cpu::ir {

/// Functions of doubles up to fmod; the others take floats.
enum class Libm {
  acos,
  acosh,
  asin,
  asinh,
  atan,
  atanh,
  cos,
  cosh,
  erf,
  sin,
  sinh,
  tan,
  atan2,
  hypot,
  pow,
  fmod,
  sinf,
  cosf,
  tanf,
  fmodf
};
inline constexpr int kLibm = 20;

/// The table for registers of so many bytes: functions of arrays, f(x, y, count): x[i] = f(x[i]) or f(x[i], y[i]);
/// behind them, libmvec's of registers, where the system has them.
const void* const* libm_table(int vector_bytes);

constexpr int place_by_lanes(Libm f) { return static_cast<int>(f); }
constexpr int place_by_vectors(Libm f) { return kLibm + static_cast<int>(f); }

/// Doubles that the system's function of registers takes; 0: it has none for this target.
int lanes_of_vector_libm(const TargetFacts& target, Libm f);

}  // namespace kfusion::cpu::ir
