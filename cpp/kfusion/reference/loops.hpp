// The inner loops of maps, reductions and casts: one per row of ops.def and compute type.
#pragma once
#include <array>

#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"
#include "kfusion/reference/walk.hpp"

namespace kfusion::reference {

/// Empty where an op takes no arguments of the dtype. The half types have none: their values are held as float32.
using LoopPerDType = std::array<Loop, kDTypes>;

/// `t`: the dtype that the arguments are held in (of `where`, the last two).
Loop map_loop(Op op, DType t);

/// Between arrays of any dtypes, the half types included.
Loop cast_loop(DType from, DType to);

/// Reduces `n` elements `stride` bytes apart for each of a run of results.
struct Reduced {
  std::int64_t n, stride;
};
using ReduceLoop = void (*)(std::int64_t results, const Pointers& p, const Strides& strides, Reduced reduced);
ReduceLoop reduce_loop(Op op, DType t);

}  // namespace kfusion::reference
