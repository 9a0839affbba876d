#include "kfusion/lower/visible.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kfusion/lower/idioms.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr double kMostExact = 1 << 24;

bool is_comparison(Op op) {
  return op == Op::less || op == Op::less_equal || op == Op::greater || op == Op::greater_equal;
}

/// row x the query + col x the key + from
struct Affine {
  std::int64_t row = 0, col = 0, from = 0;
};

class MaskReader {
 public:
  MaskReader(const Kernel& k, const PositionSteps& positions) : k_(k), positions_(positions) {}

  const Step& step(int i) const { return k_.step(i); }
  bool is(int i, Op op) const { return step(i).kind == StepKind::kMap && step(i).op == op; }
  int argument(int i, std::size_t which) const { return step(i).arguments[which]; }

  bool is_minus_infinity(int i) const { return number_of(k_, i) == -std::numeric_limits<double>::infinity(); }
  /// Whether the step is a factor that keeps the order of scores and makes nothing overflow.
  bool is_factor(int i) const {
    const auto n = number_of(k_, i);
    return n && *n > 1e-30 && *n < 1e30;
  }

  std::optional<Affine> affine(int i) const {
    if (!positions_.has(i)) return std::nullopt;
    const Step& s = step(i);
    if (s.kind == StepKind::kConstant) return Affine{0, 0, k_.constants[at(s.index)].integer};
    if (s.kind == StepKind::kIota) return affine_iota(k_.iotas[at(s.index)]);
    if (s.kind == StepKind::kCast || is(i, Op::negative)) {
      auto a = affine(s.arguments[0]);
      if (a && s.kind != StepKind::kCast) a = Affine{-a->row, -a->col, -a->from};
      return a;
    }
    if (!is(i, Op::add) && !is(i, Op::subtract) && !is(i, Op::multiply)) return std::nullopt;
    const auto a = affine(s.arguments[0]), b = affine(s.arguments[1]);
    if (!a || !b) return std::nullopt;
    if (is(i, Op::multiply)) {
      const Affine &by = a->row == 0 && a->col == 0 ? *a : *b, &of = &by == &*a ? *b : *a;
      if (by.row != 0 || by.col != 0) return std::nullopt;
      return Affine{of.row * by.from, of.col * by.from, of.from * by.from};
    }
    const std::int64_t sign = is(i, Op::add) ? 1 : -1;
    return Affine{a->row + sign * b->row, a->col + sign * b->col, a->from + sign * b->from};
  }

  /// Adds the bounds of keys for which a condition is `wanted`; false where it says more than they do.
  bool bound(int i, bool wanted, std::vector<KeyBound>& bounds) const {
    const Step& s = step(i);
    if (s.kind == StepKind::kCast && s.dtype == DType::kBool && s.from == DType::kBool)
      return bound(s.arguments[0], wanted, bounds);
    if (is(i, Op::logical_not) || (is(i, Op::invert) && s.dtype == DType::kBool))
      return bound(s.arguments[0], !wanted, bounds);
    const bool boolean = s.dtype == DType::kBool && s.from == DType::kBool;
    const bool both = is(i, Op::logical_and) || (is(i, Op::bitwise_and) && boolean);
    const bool either = is(i, Op::logical_or) || (is(i, Op::bitwise_or) && boolean);
    if ((both && wanted) || (either && !wanted)) {
      const bool first = bound(s.arguments[0], wanted, bounds), second = bound(s.arguments[1], wanted, bounds);
      return first && second;
    }
    return positions_.compares(i) && compare(i, wanted, bounds);
  }

  Peeled peel(int i, bool through_sums) const {
    Peeled p;
    for (;;) {
      const Step& s = step(i);
      if (s.kind == StepKind::kCast && s.dtype == DType::kFloat32 && is_float(s.from) && s.from != DType::kFloat64) {
        i = s.arguments[0];
      } else if (is(i, Op::multiply) && (is_factor(s.arguments[0]) || is_factor(s.arguments[1]))) {
        const std::size_t which = is_factor(s.arguments[1]) ? 1 : 0;
        p.factors.push_back(s.arguments[which]), p.divides.push_back(false);
        i = s.arguments[1 - which];
      } else if (is(i, Op::divide) && is_factor(s.arguments[1])) {
        p.factors.push_back(s.arguments[1]), p.divides.push_back(true);
        i = s.arguments[0];
      } else if (is(i, Op::where) && is_minus_infinity(s.arguments[2])) {
        p.masks.push_back({s.arguments[0], true});
        i = s.arguments[1];
      } else if (is(i, Op::where) && is_minus_infinity(s.arguments[1])) {
        p.masks.push_back({s.arguments[0], false});
        i = s.arguments[2];
      } else if (const auto sum = through_sums ? masked_sum(i) : std::nullopt) {
        p.masks.push_back(sum->mask);
        i = sum->score;
      } else {
        p.base = i;
        return p;
      }
    }
  }

 private:
  struct MaskedSum {
    int score;
    Peeled::Mask mask;
  };
  /// Matches a score plus where(condition, 0, -inf), or where(condition, -inf, 0).
  std::optional<MaskedSum> masked_sum(int i) const {
    int score = -1, condition = -1, yes = -1;
    const auto zero = m::number(0.0), hidden = m::number(-std::numeric_limits<double>::infinity());
    const auto mask = m::casts(m::either(m::where(m::bind(condition), m::bind(yes, zero), hidden),
                                         m::where(m::bind(condition), m::bind(yes, hidden), zero)));
    if (!m::add(mask, m::bind(score))(StepReader{k_}, i)) return std::nullopt;
    return MaskedSum{score, {condition, number_of(k_, yes) == 0.0}};
  }

  std::optional<Affine> affine_iota(const Operand& o) const {
    for (std::size_t i = 0; i + 1 < o.kept.size(); ++i)
      if (o.kept[i] != 0) return std::nullopt;  // of a batch
    return Affine{o.kept.back(), o.reduced.empty() ? 0 : o.reduced[0], o.offset};
  }

  bool compare(int i, bool wanted, std::vector<KeyBound>& bounds) const {
    const Op op = step(i).op;
    const bool less = op == Op::less || op == Op::less_equal, strict = op == Op::less || op == Op::greater;
    // a < b, a <= b, or where it is not wanted b <= a, b < a
    const int first = argument(i, less == wanted ? 0 : 1), second = argument(i, less == wanted ? 1 : 0);
    const bool is_strict = strict == wanted;
    if (is(first, Op::absolute)) {
      const auto inner = affine(argument(first, 0)), most = affine(second);
      if (!inner || !most) return false;
      const bool upper = at_most(*inner, *most, is_strict, bounds);
      return at_most(Affine{-inner->row, -inner->col, -inner->from}, *most, is_strict, bounds) && upper;
    }
    const auto a = affine(first), b = affine(second);
    return a && b && at_most(*a, *b, is_strict, bounds);
  }

  static bool at_most(const Affine& a, const Affine& b, bool strict, std::vector<KeyBound>& bounds) {
    const Affine d{a.row - b.row, a.col - b.col, a.from - b.from + (strict ? 1 : 0)};  // <= 0
    if (d.col == 1) bounds.push_back({true, -d.row, -d.from});
    if (d.col == -1) bounds.push_back({false, d.row, d.from});
    return d.col == 1 || d.col == -1;
  }

  const Kernel& k_;
  const PositionSteps& positions_;
};

}  // namespace

PositionSteps::PositionSteps(const Kernel& k) : k_(k), ranges_(k.steps.size()) {
  for (std::size_t i = 0; i < k.steps.size(); ++i) {
    const auto r = range_of(k.steps[i]);
    if (r && r->least >= -kMostExact && r->most <= kMostExact) ranges_[i] = r;
  }
}

std::optional<PositionSteps::Range> PositionSteps::range_of(const Step& s) const {
  if (!is_integer(s.dtype)) return std::nullopt;
  if (s.kind == StepKind::kConstant) {
    const Constant& c = k_.constants[at(s.index)];
    const auto value = static_cast<double>(c.integer);
    return c.parameter >= 0 ? std::nullopt : std::optional(Range{value, value});
  }
  if (s.kind == StepKind::kIota) {
    const Operand& o = k_.iotas[at(s.index)];
    Range r{static_cast<double>(o.offset), static_cast<double>(o.offset)};
    const auto add = [&r](const Extents& extents, const Extents& strides) {
      for (std::size_t i = 0; i < strides.size(); ++i) {
        const double last = static_cast<double>(extents[i] - 1) * static_cast<double>(strides[i]);
        (last < 0 ? r.least : r.most) += last;
      }
    };
    add(k_.kept, o.kept), add(k_.reduced, o.reduced);
    return r;
  }
  if (s.kind != StepKind::kMap && s.kind != StepKind::kCast) return std::nullopt;
  std::vector<Range> of;
  for (std::size_t i = s.op == Op::where && s.kind == StepKind::kMap ? 1 : 0; i < s.arguments.size(); ++i) {
    const auto& r = ranges_[at(s.arguments[i])];
    if (!r) return std::nullopt;
    of.push_back(*r);
  }
  if (s.kind == StepKind::kCast) return is_integer(s.from) ? std::optional(of[0]) : std::nullopt;
  switch (s.op) {
    case Op::add:
      return Range{of[0].least + of[1].least, of[0].most + of[1].most};
    case Op::subtract:
      return Range{of[0].least - of[1].most, of[0].most - of[1].least};
    case Op::multiply: {
      const double all[] = {of[0].least * of[1].least, of[0].least * of[1].most, of[0].most * of[1].least,
                            of[0].most * of[1].most};
      return Range{*std::ranges::min_element(all), *std::ranges::max_element(all)};
    }
    case Op::negative:
      return Range{-of[0].most, -of[0].least};
    case Op::absolute:
      return Range{0, std::max(std::abs(of[0].least), std::abs(of[0].most))};
    case Op::minimum:
      return Range{std::min(of[0].least, of[1].least), std::min(of[0].most, of[1].most)};
    case Op::maximum:
      return Range{std::max(of[0].least, of[1].least), std::max(of[0].most, of[1].most)};
    case Op::where:
      return Range{std::min(of[0].least, of[1].least), std::max(of[0].most, of[1].most)};
    default:
      return std::nullopt;
  }
}

bool PositionSteps::compares(int i) const {
  const Step& s = k_.step(i);
  return s.kind == StepKind::kMap && is_comparison(s.op) && has(s.arguments[0]) && has(s.arguments[1]);
}

Visible visible_keys(const Kernel& scores, int score, const PositionSteps& positions) {
  const MaskReader reader(scores, positions);
  Visible v{reader.peel(score, false), reader.peel(score, true), {}};
  bool known = true;
  for (const Peeled::Mask& m : v.seen.masks) known &= reader.bound(m.condition, m.seen, v.bounds);
  if (known)
    v.seen.masks.clear();
  else
    v.seen = v.all;
  return v;
}

int score_of(const Kernel& scores) {
  return scores.step(scores.steps.empty() ? 0 : scores.pairs[0].first).arguments[0];
}

std::vector<KeyBound> bounds_of_keys(const Kernel& scores, int score) {
  const PositionSteps positions(scores);
  const MaskReader reader(scores, positions);
  std::vector<KeyBound> bounds;
  for (const Peeled::Mask& m : reader.peel(score, false).masks) reader.bound(m.condition, m.seen, bounds);
  return bounds;
}

KeySpan seen_keys(const std::vector<KeyBound>& bounds, std::int64_t first, std::int64_t last, std::int64_t keys) {
  KeySpan seen{0, keys};
  for (const KeyBound& b : bounds) {
    const std::int64_t one = b.row * first + b.from, other = b.row * last + b.from;
    if (b.upper)
      seen.end = std::min(seen.end, std::max(one, other) + 1);
    else
      seen.begin = std::max(seen.begin, std::min(one, other));
  }
  return seen.begin < seen.end ? seen : KeySpan{0, 0};
}

}  // namespace kfusion
