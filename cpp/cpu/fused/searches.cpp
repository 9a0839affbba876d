#include "cpu/fused/searches.hpp"

#include <algorithm>
#include <optional>

namespace kfusion::cpu {
namespace {

/// x == number of the row, or x is NaN.
struct Hit {
  int x = 0, number = 0;  ///< steps
  bool nan = false;
};

class Search {
 public:
  explicit Search(const FusedProgram& p) : p_(p) {}

  RowLoop loop(int choice, const Reduction& r) const {
    const std::vector<int>& arguments = step(choice).arguments;
    const bool is_position = is_map(choice, Op::where) && is(r.step, Op::min) && step(choice).dtype == DType::kInt32;
    if (!is_position || !counts_elements(arguments[1]) || !is_beyond(arguments[2])) return {};
    const std::optional<Hit> hit = hit_of(arguments[0]);
    if (!hit) return {};
    RowLoop l;
    l.run = p_.kernels->row_search(source(hit->x).dtype, hit->nan);
    l.x = source(hit->x).operand, l.centre = home(hit->number), l.factor = home(arguments[2]), l.to = r.operand;
    l.folds = true;
    return l;
  }

 private:
  const Step& step(int s) const { return p_.kernel.steps[at(s)]; }
  const Source& source(int s) const { return p_.sources[at(p_.source_of(s))]; }
  int home(int s) const { return p_.homes[at(s)].operand; }
  bool is(int s, Op op) const { return step(s).op == op; }
  bool is_map(int s, Op op) const { return step(s).kind == StepKind::kMap && is(s, op); }

  /// 0, 1, 2, ... along the row.
  bool counts_elements(int s) const {
    if (step(s).kind != StepKind::kIota) return false;
    const Layout& l = source(s).layout;
    return l.offset == 0 && l.flat == Extents{1} && std::ranges::all_of(l.outer, [](auto n) { return n == 0; });
  }
  bool is_beyond(int s) const {
    if (step(s).kind != StepKind::kConstant) return false;
    const Constant& c = p_.kernel.constants[at(step(s).index)];
    return c.parameter < 0 && c.integer >= p_.space.cols;
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
      const bool is_array = step(hit.x).kind == StepKind::kLoad && source(hit.x).layout.reach == Reach::kDirect;
      if (is_array && p_.has_home(hit.number)) return hit;
    }
    return {};
  }

  const FusedProgram& p_;
};

}  // namespace

RowLoop search_of(const FusedProgram& p, const Wanted& wanted) {
  if (wanted.size() != 1) return {};
  const auto& [s, actions] = *wanted.begin();
  if (actions.size() != 1 || actions[0].kind != Action::Kind::kReduce) return {};
  return Search(p).loop(s, p.reductions[at(actions[0].index)]);
}

}  // namespace kfusion::cpu
