// The order of a kernel's axes: as memory has them, so that the innermost loop is over neighbours.
#include <algorithm>
#include <cstdlib>

#include "kfusion/lower/space.hpp"

namespace kfusion {
namespace {

class Sorting {
 public:
  Sorting(const Space& space, const StridedOperands& all) : space_(space), tables_(all.tables) {
    for (const auto* list : {&all.stores, &all.loads, &all.tables, &all.iotas}) {
      const auto first = static_cast<std::ptrdiff_t>(operands_.size());
      for (const Strided& s : *list) operands_.push_back(&s);
      std::stable_sort(operands_.begin() + first, operands_.end(),
                       [this](const Strided* a, const Strided* b) { return bytes(*a) > bytes(*b); });
    }
  }

  /// The axes of `among`, outermost first, as lists of neighbours that every operand walks in one step.
  std::vector<std::vector<int>> run(Axes among) const {
    std::vector<int> sorted;
    for (int axis = 0; axis < static_cast<int>(space_.extents.size()); ++axis) {
      if (among & axis_bit(at(axis))) insert(sorted, axis);
    }
    std::vector<std::vector<int>> merged;
    for (const int axis : sorted) {
      if (!merged.empty() && can_merge(merged.back().back(), axis)) {
        merged.back().push_back(axis);
      } else {
        merged.push_back({axis});
      }
    }
    return merged;
  }

  /// Whether most bytes have their neighbours along a reduced axis, of operands that vary along both kinds.
  bool rows_are_contiguous() const {
    std::int64_t along = 0, across = 0;
    for (const Strided* s : operands_) {
      if (!varies_along(*s, space_.reduced) || !varies_along(*s, kept())) continue;
      ((space_.reduced & axis_bit(at(innermost(*s)))) ? along : across) += bytes(*s);
    }
    for (const Strided& table : tables_) {  // its index may vary along any axis
      if (!varies_along(table, space_.all())) continue;
      ((space_.reduced & axis_bit(at(innermost(table)))) ? along : across) += bytes_of_all(table);
    }
    return along >= across;
  }

  Axes kept() const { return space_.all() & ~space_.reduced; }

 private:
  std::int64_t bytes(const Strided& s) const {
    auto n = static_cast<std::int64_t>(item_bytes(s.dtype));
    for (std::size_t i = 0; i < s.strides.size(); ++i) n *= s.strides[i] == 0 ? 1 : space_.extents[i];
    return n;
  }

  std::int64_t bytes_of_all(const Strided& s) const {
    return product(space_.extents) * static_cast<std::int64_t>(item_bytes(s.dtype));
  }

  static int innermost(const Strided& s) {
    int best = -1;
    for (int i = 0; i < static_cast<int>(s.strides.size()); ++i) {
      const std::int64_t stride = std::abs(s.strides[at(i)]);
      if (stride != 0 && (best < 0 || stride <= std::abs(s.strides[at(best)]))) best = i;
    }
    return best;
  }

  /// Inserts an axis by the first operand that varies along both and tells them apart. That is no total order, so axes
  /// are inserted one by one, from the inside, up to the first that belongs outside.
  void insert(std::vector<int>& sorted, int axis) const {
    auto place = sorted.end();
    for (auto other = sorted.end(); other != sorted.begin();) {
      const int order = compare(*--other, axis);
      if (order > 0) break;
      if (order < 0) place = other;
    }
    sorted.insert(place, axis);
  }

  /// 1: a is outside of b; -1: inside; 0: no operand says.
  int compare(int a, int b) const {
    for (const Strided* s : operands_) {
      const std::int64_t x = std::abs(s->strides[at(a)]), y = std::abs(s->strides[at(b)]);
      if (x != 0 && y != 0 && x != y) return x > y ? 1 : -1;
    }
    return 0;
  }

  bool can_merge(int outer, int inner) const {
    return std::all_of(operands_.begin(), operands_.end(), [&](const Strided* s) {
      return s->strides[at(outer)] == s->strides[at(inner)] * space_.extents[at(inner)];
    });
  }

  const Space& space_;
  const std::vector<Strided>& tables_;
  std::vector<const Strided*> operands_;  ///< those that decide the order first
};

using Merged = std::vector<std::vector<int>>;

Extents merged_extents(const Merged& axes, const Extents& extents) {
  Extents r;
  for (const auto& list : axes) {
    std::int64_t n = 1;
    for (const int axis : list) n *= extents[at(axis)];
    r.push_back(n);
  }
  return r;
}

Extents merged_strides(const Merged& axes, const Extents& strides) {
  Extents r;
  for (const auto& list : axes) r.push_back(strides[at(list.back())]);
  return r;
}

Operand operand_of(const Strided& s, const Merged& kept, const Merged& reduced) {
  return {s.node, s.dtype, merged_strides(kept, s.strides), merged_strides(reduced, s.strides), s.offset};
}

/// Sums of parts of the rows are taken row by row, however these lie.
Pattern kind_of(const Kernel& k, const Space& space, bool rows_are_contiguous) {
  if (space.reduced == 0) return Pattern::kPointwise;
  return rows_are_contiguous || k.parts() > 0 || k.kept.empty() ? Pattern::kRows : Pattern::kColumns;
}

}  // namespace

void set_axes(Kernel& k, const Space& space, const StridedOperands& operands) {
  const Sorting sorting(space, operands);
  const Merged kept = sorting.run(sorting.kept()), reduced = sorting.run(space.reduced);
  k.kept = merged_extents(kept, space.extents);
  k.reduced = merged_extents(reduced, space.extents);
  k.kind = kind_of(k, space, sorting.rows_are_contiguous());
  for (const Strided& s : operands.loads) k.loads.push_back(operand_of(s, kept, reduced));
  for (const Strided& s : operands.iotas) k.iotas.push_back(operand_of(s, kept, reduced));
  for (std::size_t i = 0; i < operands.tables.size(); ++i)
    k.tables[i].from = operand_of(operands.tables[i], kept, reduced);
  for (std::size_t i = 0; i < operands.stores.size(); ++i)
    k.stores[i].to = operand_of(operands.stores[i], kept, reduced);
}

}  // namespace kfusion
