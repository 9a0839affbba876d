#include "cpu/fused/searches.hpp"

#include <algorithm>

namespace kfusion::cpu {
namespace {

/// x == number of the row, or x is NaN.
struct Hit {
  int x = 0, number = 0;  ///< steps
  bool nan = false;
};

class Finder {
 public:
  explicit Finder(const FusedProgram& p) : p_(p) {}

  std::optional<Hit> hit(int choice, const Reduction& r) const {
    const std::vector<int>& arguments = step(choice).arguments;
    const bool is_position = is_map(choice, Op::where) && is(r.step, Op::min) && step(choice).dtype == DType::kInt32;
    if (!is_position || !counts_elements(arguments[1]) || !is_beyond(arguments[2])) return {};
    return hit_of(arguments[0]);
  }

  std::optional<Search> search(int choice, const Reduction& r, const Wanted& wanted) const {
    const std::optional<Hit> hit = this->hit(choice, r);
    if (!hit) return {};
    Search s{{}, hit->x, hit->number};
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
    s.loop.centre = home(hit->number), s.loop.factor = home(step(choice).arguments[2]), s.loop.to = r.operand;
    s.loop.folds = true;
    return s;
  }

  /// Where the positions that reduction 1 of the sweeps finds are those of reduction 0 of them.
  ColumnSearch column_search(const Reduction& extremes, const Reduction& positions) const {
    const int x = step(extremes.step).arguments[0];
    const Op op = step(extremes.step).op;
    const std::optional<Hit> hit = this->hit(step(positions.step).arguments[0], positions);
    const bool finds_them = hit && hit->x == x && hit->number == extremes.step && (op == Op::max || op == Op::min);
    if (!finds_them || !is_array(x) || hit->nan != is_float(step(x).dtype)) return {};
    ColumnSearch s{p_.kernels->column_search(source(x).dtype, op == Op::max), op == Op::max};
    s.source = p_.source_of(x);
    return s;
  }

 private:
  const Step& step(int s) const { return p_.kernel.steps[at(s)]; }
  const Source& source(int s) const { return p_.sources[at(p_.source_of(s))]; }
  int home(int s) const { return p_.homes[at(s)].operand; }
  bool is(int s, Op op) const { return step(s).op == op; }
  bool is_array(int s) const { return step(s).kind == StepKind::kLoad && source(s).layout.reach == Reach::kDirect; }
  bool is_map(int s, Op op) const { return step(s).kind == StepKind::kMap && is(s, op); }

  /// 0, 1, 2, ... along the row, or of columns from row to row.
  bool counts_elements(int s) const {
    if (step(s).kind != StepKind::kIota) return false;
    const Layout& l = source(s).layout;
    const Extents &along = p_.space.columns ? l.outer : l.flat, &across = p_.space.columns ? l.flat : l.outer;
    return l.offset == 0 && along == Extents{1} && std::ranges::all_of(across, [](auto n) { return n == 0; });
  }
  bool is_beyond(int s) const {
    if (step(s).kind != StepKind::kConstant) return false;
    const Constant& c = p_.kernel.constants[at(step(s).index)];
    return c.parameter < 0 && c.integer >= (p_.space.columns ? p_.space.rows : p_.space.cols);
  }
  std::optional<Hit> hit_of(int s) const {
    if (!is_map(s, Op::logical_or)) return equality(s);
    for (const int k : {0, 1}) {
      const int nan = step(s).arguments[at(k)], other = step(s).arguments[at(1 - k)];
      if (auto hit = equality(other); hit && is_map(nan, Op::isnan) && step(nan).arguments[0] == hit->x) {
        hit->nan = true;
        return hit;
      }
    }
    return {};
  }
  std::optional<Hit> equality(int s) const {
    if (!is_map(s, Op::equal)) return {};
    for (const int k : {0, 1}) {
      const Hit hit{step(s).arguments[at(k)], step(s).arguments[at(1 - k)]};
      if (!p_.has_home(hit.x) && p_.has_home(hit.number)) return hit;
    }
    return {};
  }

  const FusedProgram& p_;
};

}  // namespace

int searched_by(const FusedProgram& p, int choice, const Reduction& r) {
  const std::optional<Hit> hit = Finder(p).hit(choice, r);
  return hit ? hit->x : -1;
}

std::optional<Search> search_of(const FusedProgram& p, int choice, const Reduction& r, const Wanted& wanted) {
  return Finder(p).search(choice, r, wanted);
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
