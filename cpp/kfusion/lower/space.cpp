#include "kfusion/lower/space.hpp"

#include <stdexcept>

namespace kfusion {
bool cut_space(Space& space, Axes axes, const Extents& extents) {
  const auto common = refine(extents_of(space.extents, axes), extents);
  const auto pieces = common ? cut(space.extents, axes, common->pieces_a, common->extents) : std::nullopt;
  if (!pieces) return false;
  space.extents = pieces->domain;
  space.reduced = moved_axes(pieces->moved, space.reduced);
  for (auto& [node, span] : space.spans) span = moved_axes(pieces->moved, span);
  return true;
}

Space space_of(const Group& group) {
  Space space{group.domain, 0, {}};
  for (const int axis : group.reduced) space.reduced |= axis_bit(static_cast<std::size_t>(axis));
  for (std::size_t i = 0; i < group.nodes.size(); ++i) space.spans[group.nodes[i]] = group.spans[i];
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
