#include "kfusion/lower/idioms.hpp"

#include <algorithm>

#include "kfusion/lower/schedule.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

class Finder {
 public:
  explicit Finder(Kernel& k) : k_(k), reader_{k}, uses_(k.steps.size()), shown_(k.steps.size()) {}

  void run() {
    for (Step& s : k_.steps) s.is = {};
    count_uses();
    for (Step& s : k_.steps) annotate_one(s);
    for (const Step& s : k_.steps) note_quotient(s);
    find_quick_quotients();
    k_.picks.clear(), k_.searches.clear(), k_.exponentials.clear();
    for (int i = 0; i < std::ssize(k_.steps); ++i) {
      if (const auto pick = pick_of(i)) k_.picks.push_back(*pick);
      if (const auto search = search_of(i)) k_.searches.push_back(*search);
    }
    for (int pair = 0; pair < std::ssize(k_.pairs); ++pair)
      if (const auto e = exponentials_of(pair)) k_.exponentials.push_back(*e);
  }

 private:
  const Step& step(int i) const { return k_.step(i); }
  const Step& argument(const Step& s, int which) const { return step(s.arguments[at(which)]); }
  static bool is_map(const Step& s, Op op) { return s.kind == StepKind::kMap && s.op == op; }
  bool is_row(int i) const { return step(i).level == Level::kRow; }
  bool is_constant(int i) const { return step(i).kind == StepKind::kConstant; }
  bool is_rough(const Step& s) const { return is_half(s.dtype) || (k_.rough && s.dtype == DType::kFloat32); }

  void count_uses() {
    for (const Step& s : k_.steps)
      for (const int a : s.arguments) ++uses_[at(a)];
    for (const Store& s : k_.stores) ++uses_[at(s.step)];
  }

  void annotate_one(Step& s) {
    if (s.kind != StepKind::kMap) return;
    s.is.weight = is_weight(s);
    s.is.quick =
        s.is.weight || (info(s.op).has(kQuickPerRow) ? s.level == Level::kRow : is_rough(s) && info(s.op).has(kQuick));
    s.is.row_quotient = s.op == Op::divide && is_float(s.from) && is_row(s.arguments[1]) && !is_row(s.arguments[0]) &&
                        !is_constant(s.arguments[1]);
    s.is.random_block = s.op == Op::philox && is_row(s.arguments[1]) && is_row(s.arguments[2]);
    for (const int which : {0, 1}) {
      s.is.products[which] = has_product(s, which);
      if (is_one_plus_tanh(s, which)) s.is.tanh = which;
      if (s.is.place < 0 && compares_place(s, which)) s.is.place = which;
    }
  }

  bool is_weight(const Step& s) const {
    if (s.op != Op::exp || s.dtype != DType::kFloat32 || !is_map(argument(s, 0), Op::subtract)) return false;
    const Step& x = argument(argument(s, 0), 0);
    return x.kind == StepKind::kCast && x.dtype == DType::kFloat32 && is_half(x.from) &&
           is_of_row(argument(s, 0).arguments[1]);
  }
  /// Loops without rows have what does not vary along the last axis.
  bool is_of_row(int i) const {
    if (step(i).kind != StepKind::kLoad) return is_row(i) && !is_constant(i);
    const Operand& o = k_.loads[at(step(i).index)];
    const Extents& last = k_.kind == Pattern::kRows || k_.kind == Pattern::kFullReduction ? o.reduced : o.kept;
    return is_row(i) || (!last.empty() && last.back() == 0);
  }
  bool has_product(const Step& s, int which) const {
    if ((s.op != Op::add && s.op != Op::subtract) || !is_rough(s)) return false;
    const Step& product = argument(s, which);
    return is_map(product, Op::multiply) && is_rough(product) && uses_[at(s.arguments[at(which)])] == 1 &&
           product.level == s.level;
  }
  bool is_one_plus_tanh(const Step& s, int which) const {
    return s.op == Op::add && is_half(s.dtype) && is_map(argument(s, which), Op::tanh) &&
           number_of(k_, s.arguments[at(1 - which)]) == 1;
  }
  bool compares_place(const Step& s, int which) const {
    return s.op == Op::equal && !is_float(s.from) && argument(s, which).kind == StepKind::kIota &&
           !is_row(s.arguments[at(which)]) && is_row(s.arguments[at(1 - which)]);
  }

  void note_quotient(const Step& s) {
    if (!s.is.row_quotient) return;
    Idioms& by = k_.steps[at(s.arguments[1])].is;
    by.quick_divisor = (!by.divisor || by.quick_divisor) && (is_half(s.dtype) || argument(s, 0).is.weight);
    by.divisor = true;
  }

  /// Functions that are not quick, like floor, would show a last bit.
  void find_quick_quotients() {
    for (const Step& s : k_.steps)
      for (const int a : s.arguments) shown_[at(a)] = shown_[at(a)] || !s.is.quick;
    for (const Store& s : k_.stores) shown_[at(s.step)] = true;
    for (int i = 0; i < std::ssize(k_.steps); ++i) {
      Step& s = k_.steps[at(i)];
      s.is.quick_quotient =
          is_map(s, Op::divide) && is_constant(s.arguments[1]) && is_rough(s) && (k_.rough || !shown_[at(i)]);
    }
  }

  std::optional<Pick> pick_of(int i) const {
    Pick pick{.reduction = i};
    const auto is_hit = m::such([&](int s) { return step(s).is.place >= 0; });
    const auto is_other = m::such([&](int s) { return is_constant(s); });
    const auto chosen = m::where(m::bind(pick.equal, is_hit), m::bind(pick.value), m::bind(pick.otherwise, is_other));
    return m::sum(chosen)(reader_, i) ? std::optional(pick) : std::nullopt;
  }

  std::optional<Search> search_of(int i) const {
    Search found{.reduction = i};
    const auto is_number = m::such([&](int s) { return is_row(s); });
    const auto is_element = m::such([&](int s) { return !is_row(s); });
    const auto equal = m::equal(m::bind(found.x, is_element), m::bind(found.number, is_number));
    int nan = -1;
    const auto hit = m::either(equal, m::logical_or(equal, m::bind(nan, m::isnan(m::is(found.x)))));
    if (!m::min(m::where(hit, m::bind(found.place, m::iota()), m::bind(found.beyond)))(reader_, i)) return {};
    found.nan = nan >= 0;
    const auto beyond = number_of(k_, found.beyond);
    return beyond && *beyond > largest(k_.iotas[at(step(found.place).index)]) ? std::optional(found) : std::nullopt;
  }
  double largest(const Operand& iota) const {
    auto last = static_cast<double>(iota.offset);
    const auto add = [&last](const Extents& extents, const Extents& strides) {
      for (std::size_t d = 0; d < strides.size(); ++d)
        last += static_cast<double>(std::max<std::int64_t>(strides[d], 0)) * static_cast<double>(extents[d] - 1);
    };
    add(k_.kept, iota.kept), add(k_.reduced, iota.reduced);
    return last;
  }

  std::optional<Exponentials> exponentials_of(int index) const {
    const Pair& pair = k_.pairs[at(index)];
    if (pair.kind != Pair::Kind::kShifted) return std::nullopt;
    Exponentials e{.pair = index, .exp = step(pair.second).arguments[0]};
    if (!is_map(step(e.exp), Op::exp) || !is_map(argument(step(e.exp), 0), Op::subtract)) return std::nullopt;
    e.difference = step(e.exp).arguments[0], e.x = step(e.difference).arguments[0];
    if (is_known_later(e)) return std::nullopt;
    e.divisor = divisor_of_all(e);
    return e;
  }

  /// Steps that a sweep after that of a pair takes.
  template <class Found>
  bool any_later(int pair, const Found& found) const {
    for (int sweep = k_.paired.ready[at(k_.pairs[at(pair)].second)]; sweep < k_.paired.sweeps; ++sweep)
      if (std::ranges::any_of(element_steps(k_, sweep), found) || std::ranges::any_of(reductions(k_, sweep), found))
        return true;
    return false;
  }

  bool is_known_later(const Exponentials& e) const {
    const std::vector<bool> sources = sources_of(k_, e.x);
    const auto known = [&](int user) {
      const auto knows = [&](int a) {
        return (sources[at(a)] && !sources[at(user)] && user != e.difference) || (a == e.difference && user != e.exp);
      };
      return std::ranges::any_of(step(user).arguments, knows);
    };
    return any_later(e.pair, known) || std::ranges::any_of(k_.stores, [&](const Store& s) {
             return sources[at(s.step)] || s.step == e.difference;
           });
  }

  int divisor_of_all(const Exponentials& e) const {
    int divisor = -1;
    const auto is_other = [&](int user) {
      const Step& s = step(user);
      if (std::ranges::count(s.arguments, e.exp) == 0) return false;
      const bool first = divisor < 0;
      if (first && s.is.row_quotient) divisor = s.arguments[1];
      return !s.is.row_quotient || s.arguments[1] != divisor;
    };
    const bool others = any_later(e.pair, is_other);
    return others || std::ranges::count(k_.stores, e.exp, &Store::step) > 0 ? -1 : divisor;
  }

  Kernel& k_;
  const StepReader reader_;
  std::vector<int> uses_;    ///< by step
  std::vector<bool> shown_;  ///< by step: stored, or used by what is not quick
};

}  // namespace

void annotate(Kernel& k) { Finder(k).run(); }

std::optional<double> number_of(const Kernel& k, int step) {
  if (k.step(step).kind != StepKind::kConstant) return std::nullopt;
  const Constant& c = k.constants[at(k.step(step).index)];
  if (c.parameter >= 0) return std::nullopt;
  return is_integer(c.dtype) ? static_cast<double>(c.integer) : c.value;
}

Op StepReader::op(int step) const {
  const Step& s = k.step(step);
  switch (s.kind) {
    case StepKind::kMap:
    case StepKind::kReduce:
      return s.op;
    case StepKind::kCast:
      return Op::cast;
    case StepKind::kIota:
      return Op::iota;
    default:
      return Op::input;
  }
}

std::vector<bool> sources_of(const Kernel& k, int x) {
  const auto is_element = [&](int i) { return k.step(i).level == Level::kElement; };
  std::vector<bool> found(k.steps.size());
  found[at(x)] = is_element(x);
  for (int i = x; i >= 0; --i)
    for (const int a : k.step(i).arguments)
      if (found[at(i)] && is_element(a)) found[at(a)] = true;
  return found;
}

}  // namespace kfusion
