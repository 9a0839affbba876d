#include "cpu/fused/expressions.hpp"

#include <algorithm>
#include <optional>

namespace kfusion::cpu {
namespace {

/// Builds the expression of a step, down to arrays and numbers of the row.
class Builder {
 public:
  Builder(const FusedProgram& p, const Wanted& all, DType held) : p_(p), all_(all), known_(p.kernel.steps.size(), -1) {
    e_.held = held;
  }

  bool takes(int s) { return add(s) >= 0; }
  const Expression& expression() const { return e_; }
  std::vector<int> sources, homes;

  /// In memory, of the arrays that are no wider than what is computed; nothing where they differ.
  DType elements() const {
    DType found = e_.held;
    for (int t = 0; t < e_.count; ++t) {
      const Term& term = e_.terms[at(t)];
      if (term.kind == Term::Kind::kArray && term.dtype != e_.held) found = term.dtype;
    }
    return found;
  }

 private:
  const Step& step(int s) const { return p_.kernel.steps[at(s)]; }

  /// The term; -1 where there is none.
  int add(int s) {
    if (known_[at(s)] < 0) known_[at(s)] = made(s);
    return known_[at(s)];
  }
  int push(const Term& term) {
    if (e_.count == Expression::kMost) return -1;
    e_.terms[at(e_.count)] = term;
    return e_.count++;
  }

  int made(int s) {
    if (is_number(s)) return number(s, Term::Kind::kNumber, e_.held);
    if (p_.source_of(s) >= 0) return array(s);
    if (p_.homes[at(s)].operand >= 0 && !is_kept_now(s)) return kept(s);
    return step(s).kind == StepKind::kMap ? map(s) : -1;
  }
  bool is_number(int s) const { return p_.has_home(s); }
  int number(int s, Term::Kind kind, DType dtype) {
    if (held(step(s).dtype) != dtype) return -1;
    homes.push_back(s);
    return push({.kind = kind, .dtype = dtype, .operand = p_.homes[at(s)].operand});
  }
  int array(int s) {
    const Source& source = p_.sources[at(p_.source_of(s))];
    if (source.iota || source.layout.reach != Reach::kDirect || held(source.dtype) != e_.held) return -1;
    sources.push_back(p_.source_of(s));
    return push({.kind = Term::Kind::kArray, .dtype = source.dtype, .operand = source.operand});
  }
  bool is_kept_now(int s) const {
    const auto found = all_.find(s);
    return found != all_.end() && !p_.is_kept_by_loop(s) &&
           std::ranges::count(found->second, Action::Kind::kKeep, &Action::kind) > 0;
  }
  int kept(int s) {
    homes.push_back(s);
    return push({.kind = Term::Kind::kArray, .dtype = e_.held, .operand = p_.homes[at(s)].operand});
  }
  int map(int s) {
    if (step(s).op == Op::equal) return place(s);
    const bool is_choice = step(s).op == Op::where;
    const bool compares = step(s).op == Op::less_equal && held(step(s).from) == e_.held;
    if (!compares && (held(step(s).dtype) != e_.held || (!is_choice && held(step(s).from) != e_.held))) return -1;
    Term term{.kind = Term::Kind::kMap, .op = step(s).op};
    for (std::size_t k = 0; k < step(s).arguments.size(); ++k) {
      term.arguments[k] = add(step(s).arguments[k]);
      if (term.arguments[k] < 0) return -1;
    }
    return push(term);
  }
  /// An equality of the element's position and a number of the row.
  int place(int s) {
    for (const int k : {0, 1}) {
      const int number = step(s).arguments[at(k)], position = step(s).arguments[at(1 - k)];
      const DType dtype = step(number).dtype;
      if (counts_elements(position) && is_number(number) && (dtype == DType::kInt64 || dtype == DType::kInt32))
        return this->number(number, Term::Kind::kPlace, dtype);
    }
    return -1;
  }
  bool counts_elements(int s) const {
    if (step(s).kind != StepKind::kIota) return false;
    const Layout& l = p_.sources[at(p_.source_of(s))].layout;
    return l.offset == 0 && l.flat == Extents{1} && std::ranges::all_of(l.outer, [](auto n) { return n == 0; });
  }

  const FusedProgram& p_;
  const Wanted& all_;
  Expression e_;
  std::vector<int> known_;
};

}  // namespace

ExpressionLoop expression_loop(const FusedProgram& p, int s, const Action& action, const Wanted& all) {
  const Step* made = &p.kernel.steps[at(s)];
  const bool stores = action.kind == Action::Kind::kStore, sums = action.kind == Action::Kind::kReduce;
  // A float that is only stored as what it is cast to: the store rounds.
  if (stores && made->kind == StepKind::kCast && is_half(made->dtype) && held(made->from) == DType::kFloat32 &&
      p.targets[at(action.index)].dtype == made->dtype)
    s = made->arguments[0], made = &p.kernel.steps[at(s)];
  const bool is_sum_of_array = stores && p.targets[at(action.index)].summed && made->kind == StepKind::kLoad;
  if (!is_float(made->dtype) || (made->kind != StepKind::kMap && !is_sum_of_array)) return {};
  Builder builder(p, all, held(made->dtype));
  if (held(made->dtype) != DType::kFloat32 || !builder.takes(s)) return {};
  ExpressionLoop found;
  if (sums) {
    const Reduction& r = p.reductions[at(action.index)];
    const Op op = p.kernel.steps[at(r.step)].op;
    if (op != Op::sum && op != Op::mean) return {};
    found.loop = p.kernels->sum_loop(builder.expression(), builder.elements());
    found.loop.to = r.operand;
  } else if (stores) {
    const Target& t = p.targets[at(action.index)];
    if (t.layout.reach != Reach::kDirect || t.per_row) return {};
    const bool are_floats = builder.elements() == DType::kFloat32 && is_half(t.dtype);
    found.loop = p.kernels->store_loop(builder.expression(), are_floats ? t.dtype : builder.elements(), t.dtype);
    found.loop.to = t.operand, found.loop.target = action.index;
  } else {
    found.loop = p.kernels->store_loop(builder.expression(), builder.elements(), DType::kFloat32);
    found.loop.to = p.homes[at(s)].operand;
  }
  found.sources = std::move(builder.sources), found.homes = std::move(builder.homes);
  return found;
}

}  // namespace kfusion::cpu
