#include "cpu/fused/searches.hpp"

#include <algorithm>

namespace kfusion::cpu {
namespace {

class Finder {
 public:
  explicit Finder(const FusedProgram& p) : p_(p) {}

  /// The search that reduction `r` ends, where its positions count elements.
  const Search* hit(const Reduction& r) const {
    const auto found = std::ranges::find(p_.kernel.searches, r.step, &Search::reduction);
    if (found == p_.kernel.searches.end() || step(r.step).dtype != DType::kInt32) return nullptr;
    const bool is_one = !p_.has_home(found->x) && p_.has_home(found->number) && counts_elements(found->place);
    return is_one ? &*found : nullptr;
  }

  std::optional<SearchLoop> search(const Reduction& r, const Wanted& wanted) const {
    const Search* const hit = this->hit(r);
    if (hit == nullptr) return {};
    SearchLoop s{{}, hit->number};
    if (is_array(hit->x)) {
      s.loop.run = p_.kernels->row_search(source(hit->x).dtype, hit->nan);
      s.loop.x = source(hit->x).operand;
    } else if (home(hit->x) >= 0 && !wanted.contains(hit->x)) {
      const bool floats = is_float(step(hit->x).dtype);
      s.loop.run = p_.kernels->row_search(floats ? DType::kFloat32 : DType::kInt32, hit->nan);
      s.loop.x = home(hit->x);
    } else {
      return {};
    }
    s.loop.centre = home(hit->number), s.loop.factor = home(hit->beyond), s.loop.to = r.operand;
    s.loop.folds = true;
    return s;
  }

  /// Where the positions that reduction 1 of the sweeps finds are those of reduction 0 of them.
  ColumnSearch column_search(const Reduction& extremes, const Reduction& positions) const {
    const int x = step(extremes.step).arguments[0];
    const Op op = step(extremes.step).op;
    const Search* const hit = this->hit(positions);
    const bool finds_them =
        hit != nullptr && hit->x == x && hit->number == extremes.step && (op == Op::max || op == Op::min);
    if (!finds_them || !is_array(x) || hit->nan != is_float(step(x).dtype)) return {};
    ColumnSearch s{p_.kernels->column_search(source(x).dtype, op == Op::max), op == Op::max};
    s.source = p_.source_of(x);
    return s;
  }

 private:
  const Step& step(int s) const { return p_.kernel.steps[at(s)]; }
  const Source& source(int s) const { return p_.sources[at(p_.source_of(s))]; }
  int home(int s) const { return p_.homes[at(s)].operand; }
  bool is_array(int s) const { return step(s).kind == StepKind::kLoad && source(s).layout.reach == Reach::kDirect; }

  /// 0, 1, 2, ... along the row, or of columns from row to row.
  bool counts_elements(int s) const {
    const Layout& l = source(s).layout;
    const Extents &along = p_.space.columns ? l.outer : l.flat, &across = p_.space.columns ? l.flat : l.outer;
    return l.offset == 0 && along == Extents{1} && std::ranges::all_of(across, [](auto n) { return n == 0; });
  }

  const FusedProgram& p_;
};

}  // namespace

int searched_by(const FusedProgram& p, const Reduction& r) {
  const Search* const hit = Finder(p).hit(r);
  return hit != nullptr ? hit->x : -1;
}

std::optional<SearchLoop> search_of(const FusedProgram& p, const Reduction& r, const Wanted& wanted) {
  return Finder(p).search(r, wanted);
}

ColumnSearch column_search_of(const FusedProgram& p) {
  if (!p.space.columns || p.space.outer.size() != 1 || p.sweeps.size() < 2) return {};
  for (const int sweep : {0, 1}) {
    const TileProgram& of = p.sweeps[at(sweep)];
    if (of.reductions.size() != 1 || !of.targets.empty() || of.keeps != 0) return {};
  }
  const int extremes = p.sweeps[0].reductions[0], positions = p.sweeps[1].reductions[0];
  ColumnSearch s = Finder(p).column_search(p.reductions[at(extremes)], p.reductions[at(positions)]);
  s.extremes = extremes, s.positions = positions;
  return s;
}

}  // namespace kfusion::cpu
