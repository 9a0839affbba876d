#include "cpu/codegen/columns/columns.hpp"

#include <algorithm>

#include "cpu/codegen/columns/column_call.hpp"
#include "cpu/codegen/columns/column_plan.hpp"
#include "cpu/codegen/columns/column_rows.hpp"
#include "cpu/codegen/elements/walk.hpp"
#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {
namespace {

class ColumnsText {
 public:
  explicit ColumnsText(const Form& form)
      : form_(form), at_(form), elements_(form, at_), plan_(form), rows_(form, at_, elements_, plan_) {}

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    count_ = form_.in_tiles ? at_.runs() : told(ColumnNumber::kCount);
    inner_ = at_.integer(form_.extent(form_.axes - 2));
    rows_.begin(count_);
    elements_.compute_constants();
    form_.in_tiles ? tiles() : phases();
  }

 private:
  std::int64_t item_of(int s) const {
    return static_cast<std::int64_t>(item_bytes(compute_dtype(form_.kernel.step(s).dtype)));
  }
  bool has_runs() const { return form_.run_axes() > 1; }

  void begin_group() {
    at_.begin_row();
    at_.go_to_run(0);
    at_.begin_run();
    elements_.compute_row(0);
  }

  /// Rows [first, last) in parts, of at most `most`, that lie along the innermost of the reduced axes.
  void runs(const Number& first, const Number& last, const Number& most, Carry& carry,
            const std::function<void(const Number& row, const Number& count)>& body) {
    const Addresses::Here here = at_.here();
    repeat(first, last, carry, [&](const Number& row) {
      Number count = most.is(1) ? most : least(most, last - row);
      if (has_runs() && !most.is(1)) count = least(count, inner_ - (row - quotient(row, inner_) * inner_));
      at_.go_to_run(row);
      at_.begin_run();
      body(row, count);
      return row + count;
    });
    at_.return_to(here);
  }

  // ---- in tiles ----

  void tiles() {
    at_.go_to(Number("%row"));
    for_each(Number("%row"), Number("%last_row"), 1, [&](const Number&) {
      begin_group();
      Carry nothing;
      walk(form_, begin_, end_, aligned(form_.stores), nothing,
           [&](const Window& window, bool past_caches) { tile(window, past_caches); });
      at_.next_row();
    });
  }

  void tile(const Window& window, bool past_caches) {
    elements_.forget_columns();
    elements_.find_none();
    const Addresses::Here here = at_.here();
    for (const Transposed& t : rows_.transposed()) {
      if (!t.layout().stored) t.bring(window);
      at_.set_row(t.layout(), t.row(window).name);
    }
    for (int i = 0; i < std::ssize(plan_.sweeps); ++i) {
      const Sweep& s = plan_.sweeps[at(i)];
      if (s.wanted.empty()) continue;
      elements_.compute_columns(s.wanted, window);
      Carry carry;
      for (const auto& r : rows_.reductions(i)) r->begin(carry, at_, window.registers);
      if (has_runs())
        runs(0, count_, inner_, carry,
             [&](const Number& row, const Number& count) { rows_.take(i, window, row, count, carry, past_caches); });
      else
        rows_.take(i, window, 0, count_, carry, past_caches);
      for (const auto& r : rows_.reductions(i))
        elements_.give_columns(r->result(), r->finish(carry, window.registers, count_));
    }
    at_.return_to(here);
    for (const Transposed& t : rows_.transposed())
      if (t.layout().stored) t.take_back(window);
    store_columns(window);
  }

  // ---- in phases ----

  Number told(ColumnNumber n) const { return number_at(at_.field(Field::kColumns), static_cast<std::int64_t>(n)); }

  void phases() {
    at_.go_to(Number("%row"));
    begin_group();
    array_bytes_ = told(ColumnNumber::kArrayBytes);
    const Number first = told(ColumnNumber::kFirstPhase), last = told(ColumnNumber::kLastPhase);
    for (int p = 0; p < plan_.phases(); ++p) {
      if (p % 2 == 0 && !leaves_values(p / 2)) continue;
      when(first <= p && Number(p) < last, [&] { p % 2 == 0 ? values(p / 2) : rows_of_block(p / 2); });
    }
  }
  bool leaves_values(int ready) const {
    const bool is_last = ready == std::ssize(plan_.sweeps);
    return is_last || !plan_.held_after(form_, ready).empty();
  }

  /// Element 0 of what would be a row of arrays: those of a block begin with its first column.
  Pointer array(const Number& first, std::int64_t index, std::int64_t item) const {
    return at_.field(Field::kScratch) + (first + array_bytes_ * index - begin_ * item);
  }
  /// `column`: which is taken for the block's first.
  ColumnArrays arrays(const Number& part, const Number& column = 0) const {
    return [this, part, column](int step, std::int64_t item) {
      return array(part, std::ranges::find(plan_.reductions, step) - plan_.reductions.begin(), item) + column * item;
    };
  }
  Pointer held_array(int s) const {
    return array(0, std::ranges::find(plan_.held, s) - plan_.held.begin(), item_of(s));
  }

  /// Values that are known when `ready` sweeps are done.
  void find_held(int ready) {
    elements_.forget_columns();
    elements_.find_none();
    for (int earlier = 0; earlier <= ready; ++earlier)
      for (const int s : plan_.held_after(form_, earlier)) elements_.find_kept(s, held_array(s));
  }

  void rows_of_block(int sweep) {
    const Sweep& s = plan_.sweeps[at(sweep)];
    if (s.wanted.empty()) return;
    std::vector<Layout> stores;
    for (const int t : s.stores) stores.push_back(form_.stores[at(t)]);
    const std::optional<Number> from = aligned(stores);
    const Number part_at = told(ColumnNumber::kPart), begun = told(ColumnNumber::kBegunRow);
    const Number at_once = form_.row_by_row ? Number(1) : told(ColumnNumber::kRowsAtOnce);
    Carry nothing;
    runs(told(ColumnNumber::kFirstRow), told(ColumnNumber::kLastRow), at_once, nothing,
         [&](const Number& row, const Number& count) {
           walk(form_, begin_, end_, from, nothing, [&](const Window& window, bool past_caches) {
             find_held(sweep);
             elements_.compute_columns(s.wanted, window);
             Carry carry;
             for (const auto& r : rows_.reductions(sweep)) r->begin(carry, at_, window.registers);
             if (!carry.empty())
               when(
                   row == begun, carry, [] {},
                   [&] {
                     for (const auto& r : rows_.reductions(sweep)) r->load(carry, arrays(part_at), window);
                   });
             rows_.take(sweep, window, 0, count, carry, past_caches);
             for (const auto& r : rows_.reductions(sweep)) r->save(carry, arrays(part_at), window);
           });
         });
  }

  void values(int ready) {
    const std::vector<int> leaves = plan_.held_after(form_, ready);
    Carry nothing;
    walk(form_, begin_, end_, std::nullopt, nothing, [&](const Window& window, bool) {
      find_held(ready - 1);
      if (ready > 0) {
        for (const auto& r : rows_.reductions(ready - 1)) elements_.give_columns(r->result(), joined(*r, window));
      }
      elements_.compute_columns(leaves, window);
      for (const int s : leaves) elements_.keep(s, held_array(s), window);
      if (ready == std::ssize(plan_.sweeps)) store_columns(window);
    });
  }

  std::vector<Value> joined(ColumnAccumulators& r, const Window& window) const {
    const Number first = told(ColumnNumber::kFirstPart), bytes = told(ColumnNumber::kPartBytes);
    Carry carry;
    r.begin(carry, at_, window.registers);
    if (form_.together == 1) {
      r.load(carry, arrays(first), window);
      for_each(1, told(ColumnNumber::kParts), 1, carry,
               [&](const Number& k) { r.join(carry, arrays(first + bytes * k), window); });
    } else {
      for_each(0, told(ColumnNumber::kParts), 1, carry, [&](const Number& k) {
        for_each(0, told(ColumnNumber::kTogether), 1, carry, [&](const Number& row) {
          r.join(carry, arrays(first + bytes * k, row * told(ColumnNumber::kColumns)), window);
        });
      });
    }
    return r.finish(carry, window.registers, count_);
  }

  // ---- both ----

  /// Where stores of whole registers begin to go past the caches: all rows of a store lie alike to lines (ColumnJobs).
  std::optional<Number> aligned(const std::vector<Layout>& stores) {
    std::vector<const Layout*> along;
    for (const Layout& p : stores)
      if (p.by_runs) along.push_back(&p);
    if (!form_.streams || along.empty()) return std::nullopt;
    return first_aligned(along, at_, begin_, end_);
  }

  /// What is stored once for all rows.
  void store_columns(const Window& window) {
    std::vector<int> wanted;
    for (int t = 0; t < std::ssize(form_.stores); ++t)
      if (form_.schedule().stored[at(t)] < 0) wanted.push_back(form_.kernel.stores[at(t)].step);
    elements_.compute_columns(wanted, window);
    for (int t = 0; t < std::ssize(form_.stores); ++t)
      if (form_.schedule().stored[at(t)] < 0) rows_.store(t, window, false);
  }

  const Form& form_;
  const Number begin_{std::string("%begin")}, end_{std::string("%end")};
  Addresses at_;
  Elements elements_;
  ColumnPlan plan_;
  ColumnRows rows_;
  Number count_ = 1, inner_ = 1, array_bytes_ = 0;  ///< rows of a group, and along the innermost of their axes
};

}  // namespace

void write_columns(const Form& form) { ColumnsText(form).write(); }

}  // namespace kfusion::cpu::ir
