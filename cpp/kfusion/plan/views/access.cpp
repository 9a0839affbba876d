#include "kfusion/plan/views/access.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

/// In elements; an extent of 0 counts as 1, so that the strides of the other axes keep their meaning.
Extents c_strides(const Extents& shape) {
  Extents strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

Access transposed(const Access& a, const AxisList& axes) {
  Access r = a;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto from = static_cast<std::size_t>(axes[i]);
    r.shape[i] = a.shape[from];
    r.strides[i] = a.strides[from];
  }
  return r;
}

Access sliced(const Access& a, const SliceAttributes& s, const Extents& shape) {
  Access r = a;
  r.shape = shape;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    r.offset += s.start[i] * a.strides[i];
    r.strides[i] *= s.step[i];
  }
  return r;
}

}  // namespace

Extents channels_last(const Extents& s) { return {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]}; }

Access identity_access(NodeId base, const Extents& shape) { return {base, product(shape), shape, c_strides(shape), 0}; }

std::optional<Access> through_view(const Node& view, const Access& argument) {
  switch (view.op) {
    case Op::transpose:
      return transposed(argument, std::get<TransposeAttributes>(view.attributes).axes);
    case Op::slice:
      return sliced(argument, std::get<SliceAttributes>(view.attributes), view.shape);
    case Op::broadcast:
      return broadcast_to(argument, view.shape);
    default:
      return reshaped(argument, view.shape);
  }
}

Access taken_elements(const Node& gather, const Access& x) {
  const auto axis = at(std::get<TakeAttributes>(gather.attributes).axis);
  const std::size_t count = gather.shape.size() + 1 - x.shape.size();  // of the indices' axes in place of one
  Access r = x;
  r.shape = gather.shape;
  r.strides.erase(r.strides.begin() + static_cast<std::ptrdiff_t>(axis));
  r.strides.insert(r.strides.begin() + static_cast<std::ptrdiff_t>(axis), count, 0);
  r.positions = x.shape[axis], r.step = x.strides[axis];
  return r;
}

Access taken_indices(const Node& gather, const Access& indices) {
  if (gather.op == Op::take_along_axis) return indices;
  const auto axis = at(std::get<TakeAttributes>(gather.attributes).axis);
  Access r = indices;
  r.shape = gather.shape;
  r.strides.insert(r.strides.begin(), axis, 0);
  r.strides.resize(gather.shape.size(), 0);
  return r;
}

Access collapsed(const Access& a) {
  Access r{a.base, a.base_size, {}, {}, a.offset, a.positions, a.step};
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.shape[i] == 1) continue;
    if (!r.shape.empty() && r.strides.back() == a.strides[i] * a.shape[i]) {
      r.shape.back() *= a.shape[i];
      r.strides.back() = a.strides[i];
    } else {
      r.shape.push_back(a.shape[i]);
      r.strides.push_back(a.strides[i]);
    }
  }
  return r;
}

bool is_identity(const Access& a) {
  if (a.offset != 0 || product(a.shape) != a.base_size || a.has_positions()) return false;
  const Access c = collapsed(a);
  return c.shape.empty() || (c.shape.size() == 1 && c.strides[0] == 1) || a.base_size == 0;
}

std::int64_t distinct_elements(const Access& a) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i < a.shape.size(); ++i) n *= a.strides[i] == 0 && a.shape[i] > 0 ? 1 : a.shape[i];
  return a.has_positions() && n > 0 ? n * std::min(a.positions, product(a.shape) / n) : n;
}

// Each merged axis of the collapsed access must be cut at element counts where the new extents have a boundary.
std::optional<Access> reshaped(const Access& a, const Extents& shape) {
  Access r{a.base, a.base_size, shape, c_strides(shape), a.offset, a.positions, a.step};
  if (product(shape) == 0) return r;
  const Access from = collapsed(a);
  std::size_t axis = from.shape.size();
  std::int64_t left = 1, stride = 0;  // what is left of the current axis, and the stride of its next piece
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (left == 1) {
      --axis;  // sizes are equal, so there is one
      left = from.shape[axis];
      stride = from.strides[axis];
    }
    if (left % shape[i] != 0) return std::nullopt;
    r.strides[i] = stride;
    left /= shape[i];
    stride *= shape[i];
  }
  return r;
}

Access broadcast_to(const Access& a, const Extents& shape) {
  Access r{a.base, a.base_size, shape, Extents(shape.size(), 0), a.offset, a.positions, a.step};
  const std::size_t lead = shape.size() - a.shape.size();
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.shape[i] == shape[lead + i] && a.shape[i] != 1) r.strides[lead + i] = a.strides[i];
  }
  return r;
}

}  // namespace kfusion
