// What is left of a reduction once tiles have been taken up by accumulators: a few numbers to combine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion::cpu {

/// An accumulator's value: a double, int64, float or int32 in its first bytes.
struct Partial {
  alignas(8) std::byte bytes[8] = {};
  double as_double() const;  ///< of a float64 accumulator
  static Partial of(double v);
};

/// A reduction of elements of one compute type, outside vector registers.
struct ScalarReduction {
  /// A register's `count` accumulators as one, a power of two; of `rows` registers `pitch` bytes apart.
  void (*fold)(const std::byte* lanes, int count, std::int64_t pitch, std::int64_t rows, Partial* folded);
  void (*combine)(std::byte* a, const std::byte* b, std::int64_t count);  ///< of `count` accumulators each, left in a
  /// `count` accumulators of n elements each: values of the result's compute type.
  void (*finish)(const std::byte* a, std::int64_t n, std::byte* values, std::int64_t count);
  /// The same of accumulators `pitch` bytes apart.
  void (*finish_rows)(const std::byte* a, std::int64_t pitch, std::int64_t n, std::byte* values, std::int64_t rows);
  Partial (*identity)();  ///< nullptr where there is none
  int lane_bytes;         ///< of an accumulator
};

/// `held`: the elements' compute type.
ScalarReduction scalar_reduction(Op op, DType held);

/// All of them, neighbours first: the order depends on their number only. Leaves the result in parts[0].
void combine_all(const ScalarReduction& r, Partial* parts, std::int64_t count, std::int64_t stride);
/// The same of arrays of lanes, which have one length; leaves the result in arrays[0].
void combine_all(const ScalarReduction& r, std::vector<std::vector<std::byte>>& arrays);

}  // namespace kfusion::cpu
