#include "kfusion/rows.hpp"

#include <algorithm>
#include <cstdlib>

#include "kfusion/error.hpp"

namespace kfusion {
namespace {

struct Axis {
  std::int64_t extent, x_stride, y_stride;
};

/// Merges neighbouring axes (outermost first) that both operands walk in one step; returns how many are left.
int merge(Axis* axes, int n) {
  int kept = 0;
  for (int k = 0; k < n; ++k) {
    if (kept) {
      Axis& outer = axes[kept - 1];
      const Axis& inner = axes[k];
      if (outer.x_stride == inner.x_stride * inner.extent && outer.y_stride == inner.y_stride * inner.extent) {
        outer = {outer.extent * inner.extent, inner.x_stride, inner.y_stride};
        continue;
      }
    }
    axes[kept++] = axes[k];
  }
  return kept;
}

}  // namespace

RowProblem make_row_problem(const View& x, const View& y) {
  Axis axes[kMaxDims];
  int n = 0;
  RowProblem p;
  p.rows = 1;
  for (int d = 0; d < x.ndim - 1; ++d) {
    p.rows *= x.shape[d];
    if (x.shape[d] != 1) axes[n++] = {x.shape[d], x.strides[d], y.strides[d]};
  }
  std::stable_sort(axes, axes + n,
                   [](const Axis& a, const Axis& b) { return std::abs(a.y_stride) > std::abs(b.y_stride); });
  n = merge(axes, n);
  if (n > kMaxOuter)
    throw ValueError("kfusion: x has " + std::to_string(n) + " leading axes that cannot be merged, the most is " +
                     std::to_string(kMaxOuter) + "; pass a contiguous copy");
  if (n == 0) axes[n++] = {1, 0, 0};

  p.dtype = x.dtype;
  p.cols = x.shape[x.ndim - 1];
  p.outer_ndim = n;
  p.x.data = x.data;
  p.y.data = y.data;
  p.x.col_stride = x.strides[x.ndim - 1];
  p.y.col_stride = y.strides[y.ndim - 1];
  for (int k = 0; k < n; ++k) {
    p.outer_shape[k] = axes[k].extent;
    p.x.outer_strides[k] = axes[k].x_stride;
    p.y.outer_strides[k] = axes[k].y_stride;
  }
  return p;
}

}  // namespace kfusion
