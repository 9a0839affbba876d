#include "cpu/codegen/rows/pieces.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "cpu/codegen/form/policy.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

/// What a second of a pair lacks to be about its row's first instead of its piece's.
class Merge {
 public:
  Merge(Pair::Kind kind, std::string own, std::string total) : kind_(kind), own_(own), total_(total) {}

  /// A value of a piece, put right for the row; the piece has `n` elements of that mean.
  std::string moved(const std::string& value, const std::string& mean, const std::string& n) const {
    const std::string same = emit("fcmp oeq double " + own_ + ", " + total_);
    std::string other = kind_ == Pair::Kind::kCentred ? recentred(value, mean, n) : rescaled(value);
    return emit("select i1 " + same + ", double " + value + ", double " + other);
  }

 private:
  static std::string two(const char* op, const std::string& a, const std::string& b) {
    return emit(std::string(op) + " double " + a + ", " + b);
  }
  /// The sum of (v - total)^2 of that of (v - own)^2 (Chan, Golub and LeVeque 1983, for a centre that is rounded).
  std::string recentred(const std::string& value, const std::string& mean, const std::string& n) const {
    const std::string by = two("fsub", own_, total_), both = two("fadd", own_, total_);
    const std::string twice = two("fsub", two("fadd", mean, mean), both);
    return two("fadd", value, two("fmul", n, two("fmul", by, twice)));
  }
  /// The sum of exp(v - total) of that of exp(v - own), total >= own.
  std::string rescaled(const std::string& value) const {
    const Value by[] = {{two("fsub", own_, total_), DType::kFloat64, false}};
    const std::string scaled = two("fmul", value, apply(Op::exp, DType::kFloat64, by).name);
    const std::string none = emit("fcmp oeq double " + own_ + ", 0xFFF0000000000000");
    return emit("select i1 " + none + ", double 0.0, double " + scaled);
  }

  Pair::Kind kind_;
  std::string own_, total_;
};

std::string wide_number(const Value& x) {
  return x.type == DType::kFloat64 ? x.name : emit("fpext float " + x.name + " to double");
}

class PiecesText {
 public:
  explicit PiecesText(const Form& form)
      : form_(form), at_(form), elements_(form, at_), sweeps_(form, at_, elements_), plan_(form) {}

  void write_sweep(int i) {
    begin(i);
    Sweep& s = plan_.sweeps[static_cast<std::size_t>(i)];
    if (s.wanted.empty()) return;
    const Number first("%begin"), last("%end");
    const bool reduces = !s.reductions.empty() || !s.moments.empty();
    if (!reduces && form_.run_axes() == 0) {
      Carry nothing;
      return sweeps_.take(s, {0, 1, first * kRowPiece, least(last * kRowPiece, length_)}, nothing, s.keeps.empty());
    }
    for_each(first, last, 1, [&](const Number& piece) {
      if (!only_searches(s)) return take(i, piece);
      when(
          has_any(s, piece), [&] { take(i, piece); },
          [&] {
            for (const RowReduction& r : s.reductions) put(r.lane(), r.identity(), partial(r.step(), piece));
          });
    });
  }

  void write_finish(int i) {
    begin(i);
    const Sweep& s = plan_.sweeps[static_cast<std::size_t>(i)];
    for (const RowMoments& m : s.moments) finish(m);
    for (const RowReduction& r : s.reductions) finish(r, combined(r));
    for (const RowReduction& r : plan_.seconds[static_cast<std::size_t>(i)].reductions) finish(r, merged(r));
    if (i + 1 < std::ssize(plan_.sweeps)) return;
    elements_.compute_row(i + 1);
    for (std::size_t t = 0; t < form_.stores.size(); ++t)
      if (form_.schedule().stored[t] < 0)
        elements_.store_number(form_.stores[t], form_.kernel.stores[t].to.dtype, form_.kernel.stores[t].step);
  }

 private:
  /// Up to what is known before sweep `i`.
  void begin(int i) {
    text().libm = at_.field(Field::kLibm).name;
    length_ = at_.integer(form_.extent(form_.axes - 1));
    runs_ = at_.runs();
    of_run_ = quotient(length_ + (kRowPiece - 1), kRowPiece);
    runs_at_once_ = form_.run_axes() == 0 ? Number(1) : greatest(1, quotient(kRowPiece, length_));
    const std::int64_t numbers = result_numbers(form_);
    partials_ = at_.field(Field::kScratch) + whole_lines(8 * numbers);
    sweeps_.keep_at(plan_.kept, partials_ + ((pieces() * (8 * numbers) + 63) & -64), kept_pitch(runs_ * length_));
    elements_.compute_constants();
    at_.go_to(Number("%row"));
    at_.begin_row();
    elements_.compute_row(0);
    sweeps_.fetches().begin_within_row();
    for (int j = 0; j < i; ++j) {
      for (int s = 0; s < std::ssize(form_.kernel.steps); ++s)
        if (form_.kernel.step(s).kind == StepKind::kReduce && ready(s) == j + 1) elements_.set_number(s, result(s));
      sweeps_.find_kept_by(plan_.sweeps[static_cast<std::size_t>(j)]);
      elements_.compute_row(j + 1);
    }
  }
  int ready(int step) const { return form_.schedule().ready[static_cast<std::size_t>(step)]; }
  static Number greatest(const Number& a, const Number& b) { return choose(a < b, b, a); }

  Number pieces() const { return quotient(runs_ + (runs_at_once_ - 1), runs_at_once_) * of_run_; }
  Range range_of(const Number& piece) const {
    const Number run = quotient(piece, of_run_), begin = (piece - run * of_run_) * kRowPiece;
    const Number first = run * runs_at_once_;
    if (form_.run_axes() == 0) return {0, 1, piece * kRowPiece, least(piece * kRowPiece + kRowPiece, length_)};
    return {first, least(first + runs_at_once_, runs_), begin, least(begin + kRowPiece, length_)};
  }

  // ---- numbers in memory

  std::int64_t number(int step) const {
    const auto& steps = form_.kernel.steps;
    return std::count_if(steps.begin(), steps.begin() + step,
                         [](const Step& s) { return s.kind == StepKind::kReduce; });
  }
  Pointer partial(int step, const Number& piece) const {
    return partials_ + piece * (8 * result_numbers(form_)) + 8 * number(step);
  }
  Pointer result_at(int step) const { return at_.field(Field::kScratch) + 8 * number(step); }
  static void put(const std::string& type, const std::string& number, const Pointer& to) {
    text().line("store " + type + " " + number + ", ptr " + to.name + ", align 8");
  }
  static std::string take(const std::string& type, const Pointer& from) {
    return emit("load " + type + ", ptr " + from.name + ", align 8");
  }
  /// The value of a reduction, as finish() has left it.
  Value result(int step) const {
    const Lanes row(1);
    const DType type = compute_dtype(form_.kernel.step(step).dtype);
    return {take(compute_type(type), result_at(step)), type, false};
  }
  void finish(int step, const Value& value) {
    put(compute_type(value.type), value.name, result_at(step));
    elements_.set_number(step, value);
  }

  // ---- a piece

  void take(int i, const Number& piece) {
    Sweep &s = plan_.sweeps[static_cast<std::size_t>(i)], &then = plan_.seconds[static_cast<std::size_t>(i)];
    const Range range = range_of(piece);
    Carry carry;
    sweeps_.take(s, range, carry, s.keeps.empty());
    for (const RowMoments& m : s.moments) {
      const RowMoments::Moments values = sweeps_.moments(m, range, carry);
      put("double", values.mean, partial(m.mean(), piece));
      put("double", values.squares, partial(m.squares(), piece));
    }
    for (const RowReduction& r : s.reductions) {
      const std::string accumulator = r.accumulator(carry);
      put(r.lane(), accumulator, partial(r.step(), piece));
      if (!then.wanted.empty()) elements_.set_number(r.step(), finished(r, accumulator, range.count()));
    }
    if (then.wanted.empty()) return;
    Carry more;
    sweeps_.take(then, range, more, false);
    for (const RowReduction& r : then.reductions) put(r.lane(), r.accumulator(more), partial(r.step(), piece));
  }

  // ---- searches for an extreme: only where a piece has it

  const Search* search_of(const RowReduction& r) const {
    const auto search = std::ranges::find(form_.kernel.searches, r.step(), &Search::reduction);
    if (search == form_.kernel.searches.end()) return nullptr;
    const Step& number = form_.kernel.step(search->number);
    const bool is_extreme = number.kind == StepKind::kReduce && (number.op == Op::max || number.op == Op::min);
    return is_extreme && number.arguments[0] == search->x ? &*search : nullptr;
  }
  bool only_searches(const Sweep& s) const {
    return s.stores.empty() && s.moments.empty() && s.keeps.empty() && !s.reductions.empty() &&
           std::ranges::all_of(s.reductions, [this](const RowReduction& r) { return search_of(r) != nullptr; });
  }
  Condition has_any(const Sweep& s, const Number& piece) const {
    std::string any = "false";
    for (const RowReduction& r : s.reductions) {
      const int extreme = search_of(r)->number;
      const Value& of_row = elements_.number(extreme);
      const std::string type = compute_type(of_row.type), of_piece = take(type, partial(extreme, piece));
      const char* const same = is_float(of_row.type) ? "fcmp ueq " : "icmp eq ";  // where one is NaN, it is searched
      any = emit("or i1 " + any + ", " + emit(same + type + " " + of_piece + ", " + of_row.name));
    }
    return {any};
  }

  // ---- all of them

  Number count() const { return runs_ * length_; }
  static Value finished(const RowReduction& r, const std::string& accumulator, const Number& count) {
    const Lanes row(1);
    return r.finished(accumulator, count);
  }
  void finish(const RowReduction& r, const std::string& accumulator) {
    finish(r.step(), finished(r, accumulator, count()));
  }
  std::string combined(const RowReduction& r) const {
    const Lanes row(1);
    Carry all = {{r.lane(), r.identity()}};
    for_each(0, pieces(), 1, all, [&](const Number& piece) {
      all[0].name = r.combine(all[0].name, take(r.lane(), partial(r.step(), piece)));
    });
    return all[0].name;
  }

  /// Takes the second of a pair, whose first is known.
  std::string merged(const RowReduction& r) const {
    const Pair& pair = *std::ranges::find(form_.kernel.pairs, r.step(), &Pair::second);
    const RowReduction first(form_, pair.first);
    const std::string total = wide_number(elements_.number(pair.first));
    const bool is_centred = pair.kind == Pair::Kind::kCentred;
    const Lanes row(1);
    return sum_over_pieces([&](const Number& piece) {
      const Number n = range_of(piece).count();
      const std::string accumulator = take(first.lane(), partial(pair.first, piece));
      const Merge merge(pair.kind, wide_number(first.finished(accumulator, n)), total);
      const std::string mean = is_centred ? emit("fdiv double " + accumulator + ", " + as_double(n)) : "";
      return merge.moved(take("double", partial(r.step(), piece)), mean, as_double(n));
    });
  }

  void finish(const RowMoments& m) {
    const auto [mean, squares] = merged(m);
    finish(m.mean(), mean);
    finish(m.squares(), squares);
  }
  std::pair<Value, Value> merged(const RowMoments& m) const {
    const Lanes row(1);
    const std::string sum = sum_over_pieces([&](const Number& piece) {
      return emit("fmul double " + take("double", partial(m.mean(), piece)) + ", " +
                  as_double(range_of(piece).count()));
    });
    const Value mean = m.mean_of(emit("fdiv double " + sum + ", " + as_double(count())));
    const std::string total = wide_number(mean);
    const std::string squares = sum_over_pieces([&](const Number& piece) {
      const std::string of = take("double", partial(m.mean(), piece));
      const Merge merge(Pair::Kind::kCentred, wide_number(m.mean_of(of)), total);
      return merge.moved(take("double", partial(m.squares(), piece)), of, as_double(range_of(piece).count()));
    });
    return {mean, m.squares_of(squares, count())};
  }
  std::string sum_over_pieces(const std::function<std::string(const Number& piece)>& term) const {
    Carry all = {{"double", "-0.0"}};
    for_each(0, pieces(), 1, all, [&](const Number& piece) {
      const std::string next = term(piece);
      all[0].name = emit("fadd double " + all[0].name + ", " + next);
    });
    return all[0].name;
  }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  RowSweeps sweeps_;
  RowPlan plan_;
  Number length_ = 0, runs_ = 1, of_run_ = 1, runs_at_once_ = 1;
  Pointer partials_;
};

}  // namespace

void write_sweep(const Form& form, int sweep) { PiecesText(form).write_sweep(sweep); }
void write_finish(const Form& form, int sweep) { PiecesText(form).write_finish(sweep); }

}  // namespace kfusion::cpu::ir
