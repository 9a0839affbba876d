// The space that a kernel runs over, and how two of them are matched.
#pragma once
#include <cstdint>
#include <optional>

#include "kfusion/plan/views/access.hpp"

namespace kfusion {

/// A set of axes of a domain.
using Axes = std::uint64_t;
/// By axis of a domain: the axes of another one that it became.
using MovedAxes = Few<Axes, 4>;

constexpr Axes axis_bit(std::size_t i) { return Axes{1} << i; }
constexpr Axes all_axes(std::size_t n) { return n == 0 ? 0 : ~Axes{0} >> (64 - n); }

Extents extents_of(const Extents& domain, Axes axes);
/// Without extents of 1; an extent of 0 counts as 1, since nothing runs there.
Extents without_ones(const Extents& shape);

/// Two factorisations of one extent list cut into common factors: (6, 4) and (2, 12) give (2, 3, 4).
struct Refinement {
  Extents extents;
  Few<int, 4> pieces_a, pieces_b;  ///< into how many factors each extent of a and b is cut
};
/// Nothing where no common factors exist, (4, 6) and (6, 4) say, or where the sizes differ.
std::optional<Refinement> refine(const Extents& a, const Extents& b);

/// `axes` of a domain cut into pieces.
struct Cut {
  Extents domain;
  MovedAxes moved;
};
std::optional<Cut> cut(const Extents& domain, Axes axes, const Few<int, 4>& pieces, const Extents& extents);
Axes moved_axes(const MovedAxes& moved, Axes axes);

/// An access seen from the axes `span` of a domain: which of them the base varies along, if it does so in C order and
/// completely, so that each point of those axes is one element of the base.
std::optional<Axes> span_of(const Access& a, const Extents& domain, Axes span);

/// Whether a gather takes one element of each row of a value over `domain`, whose rows are along its axes `reduced`: to
/// a kernel over that domain it is a reduction.
bool picks(const Access& taken, const Extents& domain, Axes reduced);

}  // namespace kfusion
