#include "kfusion/reference/walk.hpp"

namespace kfusion::reference {

Walk::Walk(const Extents& shape, const std::vector<Extents>& strides) {
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) empty_ = true;
    if (shape[d] == 1) continue;
    Axis axis{shape[d], {}};
    bool merges = !axes_.empty();
    for (std::size_t k = 0; k < strides.size(); ++k) {
      axis.strides[k] = strides[k][d];
      merges = merges && axes_.back().strides[k] == axis.strides[k] * axis.extent;
    }
    if (merges) {
      axis.extent *= axes_.back().extent;
      axes_.back() = axis;
    } else {
      axes_.push_back(axis);
    }
  }
  if (axes_.empty()) axes_.push_back({1, {}});
}

bool Walk::advance(std::int64_t* index, Strides& offset) const {
  for (std::size_t d = axes_.size() - 1; d-- > 0;) {
    const Axis& axis = axes_[d];
    const bool more = ++index[d] < axis.extent;
    for (int k = 0; k < kMaxOperands; ++k) offset[k] += (more ? 1 : 1 - axis.extent) * axis.strides[k];
    if (more) return true;
    index[d] = 0;
  }
  return false;
}

}  // namespace kfusion::reference
