#include "cpu/codegen/rows/rows.hpp"

#include <limits>
#include <map>

#include "cpu/codegen/form/row_finds.hpp"
#include "cpu/codegen/rows/row_sweeps.hpp"

namespace kfusion::cpu::ir {
namespace {

class RowsText {
 public:
  explicit RowsText(const Form& form)
      : form_(form), at_(form), elements_(form, at_), sweeps_(form, at_, elements_), plan_(form) {}

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    row_ = {0, at_.runs(), 0, at_.integer(form_.extent(form_.axes - 1))};
    sweeps_.keep_at(plan_.kept, at_.field(Field::kScratch), kept_pitch(row_.count()));
    elements_.compute_constants();
    if (form_.fetches) sweeps_.fetches().begin();
    at_.go_to(Number("%row"));
    sweeps_.clear_sums(row_);
    for_each(Number("%row"), Number("%last_row"), 1, [this](const Number&) {
      at_.begin_row();
      row();
      at_.next_row();
    });
  }

 private:
  void row() {
    sweeps_.find_none();
    if (form_.streams) sweeps_.fetches().shared_lines();
    elements_.compute_row(0);
    for (int i = 0; i < std::ssize(plan_.sweeps); ++i) {
      sweep(plan_.sweeps[static_cast<std::size_t>(i)]);
      elements_.compute_row(i + 1);
    }
    for (std::size_t t = 0; t < form_.stores.size(); ++t)
      if (form_.schedule().stored[t] < 0)
        elements_.store_number(form_.stores[t], form_.kernel.stores[t].to.dtype, form_.kernel.stores[t].step);
  }

  void sweep(Sweep& s) {
    for (const RowReduction& r : s.searches) search(r);
    for (const RowReduction& r : s.picks) pick(r);
    if (s.wanted.empty()) return;
    Carry carry;
    sweeps_.take(s, row_, carry, true);
    for (const RowReduction& r : s.reductions) {
      const Value number = r.finish(carry, row_.count());
      elements_.set_number(r.step(), number);
      if (r.is_searched_for()) chunks_.insert_or_assign(r.step(), r.chunk_of(carry, number));
    }
    for (const RowMoments& m : s.moments) {
      const RowMoments::Moments values = sweeps_.moments(m, row_, carry);
      elements_.set_number(m.mean(), m.mean_of(values.mean));
      elements_.set_number(m.squares(), m.squares_of(values.squares, row_.count()));
    }
    sweeps_.find_kept_by(s);
  }

  /// The first element that is the extreme: of a long row in the chunk that has it.
  void search(const RowReduction& r) {
    const Search of = *search_of_chunk(form_, r.step());
    const auto chunk = chunks_.find(of.number);
    const Number begin = chunk == chunks_.end() ? Number(0) : chunk->second;
    const Number end = chunk == chunks_.end() ? row_.end : least(begin + elements_of_chunk(form_), row_.end);
    const std::int64_t none = std::numeric_limits<std::int64_t>::max();
    const int is_it = step(r.argument()).arguments[0];
    Carry first = {{"i64", std::to_string(none)}};
    walk(form_, begin, end, std::nullopt, first, [&](const Window& window, bool) {
      elements_.compute({is_it}, window);
      first[0].name = least(Number(first[0].name), first_lane(is_it, window, none)).name();
    });
    const DType type = compute_dtype(step(r.step()).dtype);
    const Number found(first[0].name);
    const std::string t = compute_type(type);
    const std::string place = type == DType::kInt64 ? found.name() : emit("trunc i64 " + found.name() + " to " + t);
    const std::string is_there = (found < none).name;
    elements_.set_number(r.step(), {emit("select i1 " + is_there + ", " + t + " " + place + ", " + t + " " +
                                         elements_.number(of.beyond).name),
                                    type, false});
  }

  /// The place of the first lane of a window where a step is true.
  Number first_lane(int s, const Window& window, std::int64_t none) {
    const std::string masks = vector_of("i1"), bits = "i" + std::to_string(form_.lanes);
    std::string all = "0";
    for (int j = 0; j < window.registers; ++j) {
      std::string mask = elements_.value(s, j).name;
      if (window.count) mask = emit("and " + masks + " " + mask + ", " + mask_of(*window.count));
      const std::string lanes =
          emit("zext " + bits + " " + emit("bitcast " + masks + " " + mask + " to " + bits) + " to i64");
      all = emit("or i64 " + all + ", " + emit("shl i64 " + lanes + ", " + std::to_string(form_.lanes * j)));
    }
    const Number first(call("i64", "llvm.cttz.i64", {{"i64", all}, {"i1", "false"}}));
    return choose(Number(all) == 0, none, window.first + first);
  }

  /// The one element that is not 0, if the row has it.
  void pick(const RowReduction& r) {
    const Pick p = *pick_of_one(form_, r.step());
    const Step& equal = step(p.equal);
    const Value& place = elements_.number(equal.arguments[static_cast<std::size_t>(1 - equal.is.place)]);
    const Number at(cast(place, place.type, DType::kInt64).name);
    Carry taken = {{r.lane(), r.lane() == "double" ? "0.0" : "0"}};
    when(Number(0) <= at && at < row_.end, taken, [&] {
      elements_.compute({p.value}, {at, 1, Number(1)});
      taken[0].name = r.accumulator_of(elements_.value(p.value, 0));
    });
    const auto finished = [&] {
      const Lanes row(1);
      return r.finished(taken[0].name, row_.count());
    };
    elements_.set_number(r.step(), finished());
  }

  const Step& step(int s) const { return form_.kernel.step(s); }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  RowSweeps sweeps_;
  RowPlan plan_;
  Range row_;
  std::map<int, Number> chunks_;  ///< by step: where the chunk begins that had its extreme first
};

}  // namespace

void write_rows(const Form& form) { RowsText(form).write(); }

}  // namespace kfusion::cpu::ir
