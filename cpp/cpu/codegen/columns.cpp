// Kernels whose lanes are columns: each lane has a row of the kernel's own, and takes one element of it after the
// other.
//
// In tiles, some registers of columns go through all sweeps before the next do: accumulators and values stay in
// registers. Else a block of columns goes through each sweep some rows at a time, so that long stretches of memory are
// read, and accumulators wait in memory.
#include <algorithm>
#include <memory>

#include "cpu/codegen/column_call.hpp"
#include "cpu/codegen/column_plan.hpp"
#include "cpu/codegen/column_search.hpp"
#include "cpu/codegen/policy.hpp"
#include "cpu/codegen/texts.hpp"
#include "cpu/codegen/transposed.hpp"
#include "cpu/codegen/walk.hpp"

namespace kfusion::cpu::ir {
namespace {

class ColumnsText {
 public:
  explicit ColumnsText(const Form& form) : form_(form), at_(form), elements_(form, at_), plan_(form) {
    for (int s = 0; s < std::ssize(plan_.sweeps); ++s) {
      reductions_.emplace_back();
      for (const RowReduction& r : plan_.sweeps[s_(s)].reductions)
        reductions_.back().push_back(std::make_unique<ColumnReduction>(form, r.step()));
      for (const Search& search : plan_.searches)
        if (form.schedule().ready[s_(search.number)] == s + 1)
          reductions_.back().push_back(std::make_unique<ColumnSearch>(form, search));
    }
  }

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    count_ = at_.runs();
    inner_ = at_.integer(form_.extent(form_.axes - 2));
    for (const auto* all : {&form_.loads, &form_.iotas, &form_.tables, &form_.stores})
      for (const Place& p : *all)
        if (p.by_runs)
          moving_.push_back({&p, p.transposed ? transpose(p) : at_.integer(form_.stride(p, form_.axes - 2))});
    elements_.compute_constants();
    form_.in_tiles ? tiles() : phases();
  }

 private:
  struct Moving {
    const Place* place;
    Number step;
  };
  static std::size_t s_(std::ptrdiff_t i) { return static_cast<std::size_t>(i); }
  std::int64_t item_of(int s) const {
    return static_cast<std::int64_t>(item_bytes(compute_dtype(form_.kernel.steps[s_(s)].dtype)));
  }
  std::int64_t kept_item(std::int64_t k) const { return item_of(plan_.kept[s_(k)]); }
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
      Number count = least(most, last - row);
      if (has_runs()) count = least(count, inner_ - (row - quotient(row, inner_) * inner_));
      at_.go_to_run(row);
      at_.begin_run();
      body(row, count);
      return row + count;
    });
    at_.return_to(here);
  }

  /// Gives it rows of scratch memory; returns what lies between elements there.
  Number transpose(const Place& p) {
    const auto before = static_cast<std::int64_t>(plan_.kept.size() + transposed_.size());
    transposed_.emplace_back(form_, at_, p, at_.field(Field::kScratch) + count_ * (before * tile_ * kLaneBytes),
                             count_);
    return transposed_.back().step();
  }

  // ---- in tiles ----

  void tiles() {
    at_.go_to(Number("%row"));
    for_each(Number("%row"), Number("%last_row"), 1, [&](const Number&) {
      begin_group();
      Carry nothing;
      walk(form_, begin_, end_, aligned(form_.stores), nothing,
           [&](const Part& part, bool past_caches) { tile(part, past_caches); });
      at_.next_row();
    });
  }

  void tile(const Part& part, bool past_caches) {
    elements_.forget_columns();
    elements_.find_none();
    const Addresses::Here here = at_.here();
    for (const Transposed& t : transposed_) {
      if (!t.place().stored) t.bring(part);
      at_.set_row(t.place(), t.row(part).name);
    }
    for (int i = 0; i < std::ssize(plan_.sweeps); ++i) {
      const Sweep& s = plan_.sweeps[s_(i)];
      if (s.wanted.empty()) continue;
      elements_.compute_columns(s.wanted, part);
      Carry carry;
      for (const auto& r : reductions_[s_(i)]) r->begin(carry, at_, part.registers);
      if (has_runs())
        runs(0, count_, inner_, carry,
             [&](const Number& row, const Number& count) { rows(i, part, row, count, carry, past_caches); });
      else
        rows(i, part, 0, count_, carry, past_caches);
      for (const auto& r : reductions_[s_(i)])
        elements_.give_columns(r->result(), r->finish(carry, part.registers, count_));
    }
    at_.return_to(here);
    for (const Transposed& t : transposed_)
      if (t.place().stored) t.take_back(part);
    store_columns(part);
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
  ColumnArrays arrays(const Number& part) const {
    return [this, part](int step, std::int64_t item) {
      return array(part, std::ranges::find(plan_.reductions, step) - plan_.reductions.begin(), item);
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
    const Sweep& s = plan_.sweeps[s_(sweep)];
    if (s.wanted.empty()) return;
    std::vector<Place> stores;
    for (const int t : s.stores) stores.push_back(form_.stores[s_(t)]);
    const std::optional<Number> from = aligned(stores);
    const Number part_at = told(ColumnNumber::kPart);
    const Number first = told(ColumnNumber::kFirstRow);
    Carry nothing;
    runs(first, told(ColumnNumber::kLastRow), told(ColumnNumber::kRowsAtOnce), nothing,
         [&](const Number& row, const Number& count) {
           walk(form_, begin_, end_, from, nothing, [&](const Part& part, bool past_caches) {
             find_held(sweep);
             elements_.compute_columns(s.wanted, part);
             Carry carry;
             for (const auto& r : reductions_[s_(sweep)]) r->begin(carry, at_, part.registers);
             if (!carry.empty())
               when(first < row, carry, [&] {
                 for (const auto& r : reductions_[s_(sweep)]) r->load(carry, arrays(part_at), part);
               });
             rows(sweep, part, 0, count, carry, past_caches);
             for (const auto& r : reductions_[s_(sweep)]) r->save(carry, arrays(part_at), part);
           });
         });
  }

  void values(int ready) {
    const std::vector<int> leaves = plan_.held_after(form_, ready);
    Carry nothing;
    walk(form_, begin_, end_, std::nullopt, nothing, [&](const Part& part, bool) {
      find_held(ready - 1);
      if (ready > 0) {
        for (const auto& r : reductions_[s_(ready - 1)]) elements_.give_columns(r->result(), joined(*r, part));
      }
      elements_.compute_columns(leaves, part);
      for (const int s : leaves) elements_.keep(s, held_array(s), part);
      if (ready == std::ssize(plan_.sweeps)) store_columns(part);
    });
  }

  std::vector<Value> joined(ColumnAccumulators& r, const Part& part) const {
    const Number first = told(ColumnNumber::kFirstPart), bytes = told(ColumnNumber::kPartBytes);
    Carry carry;
    r.begin(carry, at_, part.registers);
    r.load(carry, arrays(first), part);
    for_each(1, told(ColumnNumber::kParts), 1, carry,
             [&](const Number& k) { r.join(carry, arrays(first + bytes * k), part); });
    return r.finish(carry, part.registers, count_);
  }

  // ---- both ----

  /// From where on stores of whole registers go past the caches: all rows of a store lie alike to lines (ColumnJobs).
  std::optional<Number> aligned(const std::vector<Place>& stores) {
    std::vector<const Place*> along;
    for (const Place& p : stores)
      if (p.by_runs) along.push_back(&p);
    if (!form_.streams || along.empty()) return std::nullopt;
    return first_aligned(along, at_, begin_, end_);
  }

  /// `count` rows of a sweep from where the addresses are, one after the other. `row`: from the first of the tile's.
  void rows(int sweep, const Part& part, const Number& row, const Number& count, Carry& carry, bool past_caches) {
    const Addresses::Here here = at_.here();
    const std::size_t each = carry.size();
    const int chains = chains_of(sweep);
    for (int c = 1; c < chains; ++c) {
      Carry more;
      for (const auto& r : reductions_[s_(sweep)]) r->begin(more, at_, part.registers);
      carry.insert(carry.end(), more.begin(), more.end());
    }
    push_rows(row, carry);
    Number rest = 0;
    if (chains > 1) {
      rest = for_each(0, count, chains, carry, [&](const Number&) {
        for (int c = 0; c < chains; ++c) next_row(sweep, part, carry, each, c * each, past_caches);
      });
      Carry all(carry.begin(), carry.begin() + static_cast<std::ptrdiff_t>(each));
      for (int c = 1; c < chains; ++c)
        for (const auto& r : reductions_[s_(sweep)]) r->merge(all, carry, c * each);
      all.insert(all.end(), carry.begin() + static_cast<std::ptrdiff_t>(chains * each), carry.end());
      carry = std::move(all);
    }
    for_each(rest, count, 1, carry, [&](const Number&) { next_row(sweep, part, carry, each, 0, past_caches); });
    carry.resize(each);
    at_.return_to(here);
  }

  int chains_of(int sweep) const {
    const auto& all = reductions_[s_(sweep)];
    const bool merges = std::ranges::all_of(all, [](const auto& r) { return r->merges(); });
    return merges && !all.empty() ? form_.chains : 1;
  }

  /// Where the rows of a loop begin, as what it carries behind accumulators.
  void push_rows(const Number& row, Carry& carry) const {
    for (const Moving& m : moving_)
      carry.push_back({m.place->is_iota() ? "i64" : "ptr",
                       m.place->is_iota() ? at_.first_number(*m.place).name() : at_.row(*m.place).name});
    for (std::int64_t k = 0; k < std::ssize(plan_.kept); ++k)
      carry.push_back(
          {"ptr", (at_.field(Field::kScratch) + (count_ * k * kLaneBytes + row * kept_item(k)) * tile_).name});
  }

  /// Takes a row into the accumulators that begin at `first`, `each` of them, and goes on.
  void next_row(int sweep, const Part& part, Carry& carry, std::size_t each, std::size_t first, bool past_caches) {
    std::size_t at = carry.size() - moving_.size() - plan_.kept.size();
    const std::size_t rows = at;
    for (const Moving& m : moving_) at_.set_row(*m.place, carry[at++].name);
    kept_rows_.clear();
    for (std::size_t k = 0; k < plan_.kept.size(); ++k) kept_rows_.push_back({carry[at++].name});
    const auto begin = carry.begin() + static_cast<std::ptrdiff_t>(first);
    Carry mine(begin, begin + static_cast<std::ptrdiff_t>(each));
    row_of_columns(sweep, part, mine, past_caches);
    std::ranges::copy(mine, begin);
    at = rows;
    for (const Moving& m : moving_) {
      std::string& place = carry[at++].name;
      place = m.place->is_iota() ? (Number(place) + m.step).name() : (Pointer{place} + m.step).name;
    }
    for (std::int64_t k = 0; k < std::ssize(plan_.kept); ++k, ++at)
      carry[at].name = (Pointer{carry[at].name} + tile_ * kept_item(k)).name;
  }

  void row_of_columns(int sweep, const Part& part, Carry& carry, bool past_caches) {
    const Sweep& s = plan_.sweeps[s_(sweep)];
    const auto kept_row = [&](int step) {
      return kept_rows_[s_(std::ranges::find(plan_.kept, step) - plan_.kept.begin())];
    };
    const auto is_before = [&](int step) {
      for (int i = 0; i < sweep; ++i)
        if (std::ranges::find(plan_.sweeps[s_(i)].keeps, step) != plan_.sweeps[s_(i)].keeps.end()) return true;
      return false;
    };
    const Part of_tile{0, part.registers, part.count};
    for (const int step : plan_.kept)
      if (is_before(step)) elements_.find_kept(step, kept_row(step) + (Number(0) - part.first * item_of(step)));
    elements_.compute_run(s.wanted);
    elements_.compute(s.wanted, part);
    if (form_.fetches && sweep == 0 && !part.count) fetch_ahead(part);
    for (const auto& r : reductions_[s_(sweep)]) r->take(carry, elements_, at_, part.registers);
    for (const int step : s.keeps) elements_.keep(step, kept_row(step), of_tile);
    for (const int t : s.stores) store(t, part, past_caches);
  }

  /// Rows of the next turn: those that lie a power of two apart share few lines of the first cache.
  void fetch_ahead(const Part& part) {
    constexpr std::int64_t kLine = 64;
    for (const Moving& m : moving_) {
      const Place& p = *m.place;
      if (p.stored || p.is_iota() || p.is_table || p.reach != Reach::kDense) continue;
      const Pointer next = at_.row(p) + (m.step * kRowsAtOnce + part.first * p.item);
      for (std::int64_t line = 0; line < std::int64_t{form_.lanes} * part.registers * p.item; line += kLine)
        prefetch(next + line);
    }
  }

  void store(int t, const Part& part, bool past_caches) {
    const Store& store = form_.kernel.stores[s_(t)];
    elements_.store(form_.stores[s_(t)], store.to.dtype, store.step, part, past_caches);
  }

  /// What is stored once for all rows.
  void store_columns(const Part& part) {
    std::vector<int> wanted;
    for (int t = 0; t < std::ssize(form_.stores); ++t)
      if (form_.schedule().stored[s_(t)] < 0) wanted.push_back(form_.kernel.stores[s_(t)].step);
    elements_.compute_columns(wanted, part);
    for (int t = 0; t < std::ssize(form_.stores); ++t)
      if (form_.schedule().stored[s_(t)] < 0) store(t, part, false);
  }

  const Form& form_;
  const Number begin_{std::string("%begin")}, end_{std::string("%end")};
  Addresses at_;
  Elements elements_;
  ColumnPlan plan_;
  std::vector<std::vector<std::unique_ptr<ColumnAccumulators>>> reductions_;  ///< by sweep
  std::vector<Moving> moving_;                                                ///< elsewhere in each row
  std::vector<Transposed> transposed_;
  std::vector<Pointer> kept_rows_;  ///< of the row that is taken
  const std::int64_t tile_ = std::int64_t{form_.lanes} * form_.registers;
  Number count_ = 1, inner_ = 1, array_bytes_ = 0;  ///< rows of a group, and along the innermost of their axes
};

}  // namespace

void write_columns(const Form& form) { ColumnsText(form).write(); }

}  // namespace kfusion::cpu::ir
