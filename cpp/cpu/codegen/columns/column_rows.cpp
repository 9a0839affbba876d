#include "cpu/codegen/columns/column_rows.hpp"

#include <algorithm>

#include "cpu/codegen/columns/column_call.hpp"
#include "cpu/codegen/columns/column_search.hpp"
#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {

ColumnRows::ColumnRows(const Form& form, Addresses& at, Elements& elements, const ColumnPlan& plan)
    : form_(form), at_(at), elements_(elements), plan_(plan), tile_(std::int64_t{form.lanes} * form.registers) {
  for (int s = 0; s < std::ssize(plan.sweeps); ++s) {
    reductions_.emplace_back();
    for (const RowReduction& r : plan.sweeps[kfusion::at(s)].reductions)
      reductions_.back().push_back(std::make_unique<ColumnReduction>(form, r.step()));
    for (const Search& search : plan.searches)
      if (form.schedule().ready[kfusion::at(search.number)] == s + 1)
        reductions_.back().push_back(std::make_unique<ColumnSearch>(form, search));
  }
}

void ColumnRows::begin(const Number& count) {
  count_ = count;
  for (const auto* all : {&form_.loads, &form_.iotas, &form_.tables, &form_.stores})
    for (const Layout& p : *all)
      if (p.by_runs)
        moving_.push_back({&p, p.transposed ? transpose(p) : at_.integer(form_.stride(p, form_.axes - 2))});
  for (const Moving& m : moving_)
    if (const Layout& p = *m.layout;
        form_.fetches && !p.stored && !p.is_iota() && !p.is_table && p.reach == Reach::kDense)
      fetched_.push_back(fetched(m));
}

/// Gives it rows of scratch memory; returns what lies between elements there.
Number ColumnRows::transpose(const Layout& p) {
  const auto before = static_cast<std::int64_t>(plan_.kept.size() + transposed_.size());
  transposed_.emplace_back(form_, at_, p, at_.field(Field::kScratch) + count_ * (before * tile_ * kLaneBytes), count_);
  return transposed_.back().row_bytes();
}

/// `count` rows of a sweep from where the addresses are, one after the other. `row`: from the first of the tile's.
void ColumnRows::take(int sweep, const Window& window, const Number& row, const Number& count, Carry& carry,
                      bool past_caches) {
  const Addresses::Here here = at_.here();
  const std::size_t each = carry.size();
  const int chains = chains_of(sweep);
  for (int c = 1; c < chains; ++c) {
    Carry more;
    for (const auto& r : reductions_[at(sweep)]) r->begin(more, at_, window.registers);
    carry.insert(carry.end(), more.begin(), more.end());
  }
  push_rows(row, carry);
  if (count.is(1)) {
    next_row(sweep, window, carry, each, 0, past_caches);
    carry.resize(each);
    return at_.return_to(here);
  }
  Number rest = 0;
  if (chains > 1) {
    rest = for_each(0, count, chains, carry, [&](const Number&) {
      for (int c = 0; c < chains; ++c) next_row(sweep, window, carry, each, c * each, past_caches);
    });
    Carry all(carry.begin(), carry.begin() + static_cast<std::ptrdiff_t>(each));
    for (int c = 1; c < chains; ++c)
      for (const auto& r : reductions_[at(sweep)]) r->merge(all, carry, c * each);
    all.insert(all.end(), carry.begin() + static_cast<std::ptrdiff_t>(chains * each), carry.end());
    carry = std::move(all);
  }
  for_each(rest, count, 1, carry, [&](const Number&) { next_row(sweep, window, carry, each, 0, past_caches); });
  carry.resize(each);
  at_.return_to(here);
}

int ColumnRows::chains_of(int sweep) const {
  const auto& all = reductions_[at(sweep)];
  const bool merges = std::ranges::all_of(all, [](const auto& r) { return r->merges(); });
  return merges && !all.empty() ? form_.chains : 1;
}

/// Where the rows of a loop begin, as what it carries behind accumulators.
void ColumnRows::push_rows(const Number& row, Carry& carry) const {
  for (const Moving& m : moving_)
    carry.push_back({m.layout->is_iota() ? "i64" : "ptr",
                     m.layout->is_iota() ? at_.first_number(*m.layout).name() : at_.row(*m.layout).name});
  for (std::int64_t k = 0; k < std::ssize(plan_.kept); ++k)
    carry.push_back(
        {"ptr", (at_.field(Field::kScratch) + (count_ * k * kLaneBytes + row * kept_item(k)) * tile_).name});
}

/// Takes a row into the accumulators that begin at `first`, `each` of them, and goes on.
void ColumnRows::next_row(int sweep, const Window& window, Carry& carry, std::size_t each, std::size_t first,
                          bool past_caches) {
  std::size_t at = carry.size() - moving_.size() - plan_.kept.size();
  const std::size_t rows = at;
  for (const Moving& m : moving_) at_.set_row(*m.layout, carry[at++].name);
  kept_rows_.clear();
  for (std::size_t k = 0; k < plan_.kept.size(); ++k) kept_rows_.push_back({carry[at++].name});
  const auto begin = carry.begin() + static_cast<std::ptrdiff_t>(first);
  Carry mine(begin, begin + static_cast<std::ptrdiff_t>(each));
  row_of_columns(sweep, window, mine, past_caches);
  std::ranges::copy(mine, begin);
  at = rows;
  for (const Moving& m : moving_) {
    std::string& place = carry[at++].name;
    place = m.layout->is_iota() ? (Number(place) + m.step).name() : (Pointer{place} + m.step).name;
  }
  for (std::int64_t k = 0; k < std::ssize(plan_.kept); ++k, ++at)
    carry[at].name = (Pointer{carry[at].name} + tile_ * kept_item(k)).name;
}

void ColumnRows::row_of_columns(int sweep, const Window& window, Carry& carry, bool past_caches) {
  const Sweep& s = plan_.sweeps[at(sweep)];
  const auto kept_row = [&](int step) {
    return kept_rows_[at(std::ranges::find(plan_.kept, step) - plan_.kept.begin())];
  };
  const auto is_before = [&](int step) {
    for (int i = 0; i < sweep; ++i)
      if (std::ranges::find(plan_.sweeps[at(i)].keeps, step) != plan_.sweeps[at(i)].keeps.end()) return true;
    return false;
  };
  const Window of_tile{0, window.registers, window.count};
  for (const int step : plan_.kept)
    if (is_before(step)) elements_.find_kept(step, kept_row(step) + (Number(0) - window.first * item_of(step)));
  elements_.compute_run(s.wanted);
  elements_.compute(s.wanted, window);
  if (sweep == 0 && !window.count) fetch_ahead(window);
  for (const auto& r : reductions_[at(sweep)]) r->take(carry, elements_, at_, window.registers);
  for (const int step : s.keeps) elements_.keep(step, kept_row(step), of_tile);
  for (const int t : s.stores) store(t, window, past_caches);
}

/// Where to fetch these columns of the rows that are read at once next. Row by row: some rows ahead; where a block's
/// row is longer than what is fetched ahead, in that row and then in the next.
ColumnRows::Fetched ColumnRows::fetched(const Moving& m) const {
  const std::int64_t item = m.layout->item;
  const Number begin(std::string("%begin")), end(std::string("%end")), bytes = (end - begin) * item;
  if (!form_.row_by_row) {
    const Number at_once = number_at(at_.field(Field::kColumns), static_cast<std::int64_t>(ColumnNumber::kRowsAtOnce));
    return {m.layout, end, at_once * m.step, at_once * m.step};
  }
  const Number rows = quotient(kBytesAhead, bytes);
  return {m.layout, end - kBytesAhead / item, choose(rows == 0, kBytesAhead, rows * m.step),
          choose(rows == 0, m.step - bytes + kBytesAhead, rows * m.step)};
}

void ColumnRows::fetch_ahead(const Window& window) const {
  for (const Fetched& f : fetched_) {
    const Number ahead = choose(window.first < f.limit, f.ahead, f.ahead_of_last);
    const Pointer next = at_.row(*f.layout) + (window.first * f.layout->item + ahead);
    for (std::int64_t line = 0; line < std::int64_t{form_.lanes} * window.registers * f.layout->item; line += kLine)
      prefetch(next + line, form_.row_by_row ? Fetch::kNear : Fetch::kFar);
  }
}

void ColumnRows::store(int t, const Window& window, bool past_caches) {
  const Store& store = form_.kernel.stores[at(t)];
  elements_.store(form_.stores[at(t)], store.to.dtype, store.step, window, past_caches);
}

}  // namespace kfusion::cpu::ir
