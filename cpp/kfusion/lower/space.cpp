#include "kfusion/lower/space.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace kfusion {
namespace {

struct Axis {
  std::int64_t extent = 1, seen = 1, stored = 1;  ///< strides: in elements of the base, and where they are to lie
};

/// The axes of a result, outermost first as its base is computed; reversed ones are walked from their other end.
std::vector<Axis> axes_in_order(const Access& view, const Extents& strides, std::int64_t& offset) {
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 1) continue;
    Axis a{view.shape[i], view.strides[i], strides[i]};
    if (a.seen < 0) {
      offset += a.stored * (a.extent - 1);
      a.seen = -a.seen;
      a.stored = -a.stored;
    }
    axes.push_back(a);
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.seen > b.seen; });
  return axes;
}

/// Where the elements of a base lie that is computed in C order, where `view` of it is to have `strides`.
Access stored_through(const Access& view, const Extents& strides) {
  Access to{view.base, view.base_size, {}, {}, 0};
  const std::vector<Axis> axes = axes_in_order(view, strides, to.offset);
  std::int64_t inner = 1;
  for (auto a = axes.rbegin(); a != axes.rend() && a->seen == inner; ++a) inner *= a->extent;
  if (inner != view.base_size || product(view.shape) != inner) {
    throw std::logic_error("kfusion: an output with strides must be all of what is computed, in any order");
  }
  for (const Axis& a : axes) {
    to.shape.push_back(a.extent);
    to.strides.push_back(a.stored);
  }
  return to;
}

/// The output that is computed as `base` and whose strides the caller gives; -1: none.
int strided_output(const Plan& plan, NodeId base, const OutputStrides& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto node = static_cast<std::size_t>(plan.graph.outputs[i].node);
    if (!outputs[i].empty() && plan.folded.value[node].base == base) return static_cast<int>(i);
  }
  return -1;
}

void cut_space(Space& space, Axes axes, const Extents& extents) {
  const auto common = refine(extents_of(space.extents, axes), extents);
  const auto pieces = common ? cut(space.extents, axes, common->pieces_a, common->extents) : std::nullopt;
  if (!pieces) throw std::logic_error("kfusion: the strides of an output do not fit the axes of its kernel");
  space.extents = pieces->domain;
  space.reduced = moved_axes(pieces->moved, space.reduced);
  for (auto& [node, span] : space.spans) span = moved_axes(pieces->moved, span);
}

}  // namespace

std::vector<Stored> stored_values(const Plan& plan, const Group& group, const OutputStrides& outputs) {
  std::vector<Stored> result;
  for (const NodeId n : group.stores) {
    const Extents& shape = plan.computed[static_cast<std::size_t>(n)];
    const int i = strided_output(plan, n, outputs);
    if (i < 0) {
      result.push_back({n, identity_access(n, shape)});
    } else {
      const auto at = static_cast<std::size_t>(i);
      const Access& view = plan.folded.value[static_cast<std::size_t>(plan.graph.outputs[at].node)];
      result.push_back({n, stored_through(view, outputs[at])});
    }
  }
  return result;
}

Space space_of(const Group& group, const std::vector<Stored>& stored) {
  Space space{group.domain, 0, {}};
  for (const int axis : group.reduced) space.reduced |= axis_bit(static_cast<std::size_t>(axis));
  for (std::size_t i = 0; i < group.nodes.size(); ++i) space.spans[group.nodes[i]] = group.spans[i];
  for (const Stored& s : stored) cut_space(space, space.spans.at(s.node), without_ones(collapsed(s.to).shape));
  return space;
}

Strided seen_from(const Space& space, Axes span, const Access& a, DType dtype) {
  const auto seen = reshaped(a, extents_of(space.extents, span));
  if (!seen) throw std::logic_error("kfusion: a value is not read along the axes of its kernel");
  Strided s{a.base, dtype, Extents(space.extents.size(), 0), a.offset};
  for (std::size_t axis = 0, next = 0; axis < space.extents.size(); ++axis) {
    if (span & axis_bit(axis)) s.strides[axis] = seen->strides[next++];
  }
  return s;
}

bool varies_along(const Strided& s, Axes axes) {
  for (std::size_t i = 0; i < s.strides.size(); ++i) {
    if ((axes & axis_bit(i)) && s.strides[i] != 0) return true;
  }
  return false;
}

}  // namespace kfusion
