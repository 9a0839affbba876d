// The space of a kernel while it is made: the domain of its group, with operands strided over all of its axes.
#pragma once
#include <unordered_map>
#include <vector>

#include "kfusion/lower/kernel.hpp"
#include "kfusion/plan/views/domain.hpp"

namespace kfusion {

struct Space {
  Extents extents;
  Axes reduced = 0;
  std::unordered_map<NodeId, Axes> spans;  ///< by node of the group: the axes along which its value varies

  Axes all() const { return all_axes(extents.size()); }
};

/// The group's domain.
Space space_of(const Group& group);
/// Cuts the axes `axes` where an operand over `extents` does, if common factors exist.
bool cut_space(Space& space, Axes axes, const Extents& extents);

/// An operand before its axes are sorted.
struct Strided {
  NodeId node = 0;
  DType dtype = DType::kFloat32;
  Extents strides;  ///< along all axes of the space
  std::int64_t offset = 0;
  bool operator==(const Strided&) const = default;
};

/// `a`, an access over the points of `span`, from all axes of the space.
Strided seen_from(const Space& space, Axes span, const Access& a, DType dtype);
bool varies_along(const Strided& s, Axes axes);

struct StridedOperands {
  const std::vector<Strided>&loads, &iotas, &tables, &stores;
};

/// Sets the kernel's kind (kPointwise, kRows or kColumns), its axes, sorted and merged, and its operands. tables[i] and
/// stores[i] belong to those of `k`.
void set_axes(Kernel& k, const Space& space, const StridedOperands& operands);

}  // namespace kfusion
