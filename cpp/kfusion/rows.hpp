// The problem that a row kernel solves: rows (any leading axes, collapsed) x cols (the last axis).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kfusion/view.hpp"

namespace kfusion {

/// Leading axes left after collapsing: more would mean over 2^32 rows.
inline constexpr int kMaxOuter = 32;

/// Where a matrix operand's rows lie. All strides are in bytes.
struct RowOperand {
  std::byte* data = nullptr;
  std::int64_t col_stride = 0;
  std::int64_t outer_strides[kMaxOuter] = {};
};

/// A per-column parameter (weight or bias); data == nullptr means absent.
struct ColOperand {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;  ///< the matrix's dtype or float32
  std::int64_t stride = 0;        ///< in bytes
};

/// y[r, :] = f(x[r, :]) for every row r. Row r's index over the outer axes (the last one fastest) gives its
/// offset. `x` and `y` are either disjoint or the same memory element by element.
struct RowProblem {
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, cols = 0;
  int outer_ndim = 0;  ///< at least 1 as make_row_problem leaves it; 1 for every dense matrix
  std::int64_t outer_shape[kMaxOuter] = {};
  RowOperand x, y;
  ColOperand weight, bias;
  double eps = 0;

  std::int64_t row_offset(const RowOperand& m, std::int64_t row) const {
    if (outer_ndim == 1) return row * m.outer_strides[0];
    std::int64_t offset = 0;
    for (int d = outer_ndim - 1; d >= 0; --d) {
      offset += row % outer_shape[d] * m.outer_strides[d];
      row /= outer_shape[d];
    }
    return offset;
  }
};

/// Collapses the leading axes of `x` and `y` (same shape, ndim >= 1): axes of extent 1 are dropped, the others
/// ordered by y's stride and merged where both operands allow it. Throws ValueError beyond kMaxOuter axes.
RowProblem make_row_problem(const View& x, const View& y);

}  // namespace kfusion
