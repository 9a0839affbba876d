#include "cpu/codegen/rows/row_sweeps.hpp"

#include <algorithm>

#include "cpu/codegen/form/row_finds.hpp"

namespace kfusion::cpu::ir {
namespace {

std::string wide_sum(const std::string& a, const std::string& b) {
  return emit("fadd " + vector_of("double") + " " + a + ", " + b);
}

}  // namespace

void RowSweeps::keep_at(const std::vector<int>& steps, const Pointer& memory, const Number& pitch) {
  kept_steps_ = steps, kept_ = memory, pitch_ = pitch;
}

void RowSweeps::find_none() {
  found_.clear();
  elements_.find_none();
}

Pointer RowSweeps::kept(int step) const {
  const auto place = std::ranges::find(kept_steps_, step) - kept_steps_.begin();
  return kept_ + pitch_ * place + run_offset_;
}

void RowSweeps::find_kept_by(const Sweep& s) {
  for (const int step : s.keeps) {
    found_.push_back(step);
    elements_.find_kept(step, kept(step));
  }
}

void RowSweeps::take(Sweep& s, const Range& range, Carry& carry, bool may_stream) {
  for (RowReduction& r : s.reductions) r.begin(carry);
  if (!s.moments.empty() || std::ranges::any_of(s.reductions, &RowReduction::by_chunks)) return chunks(s, range, carry);
  for_runs(s.wanted, range, carry, [&] { elements(s, range.begin, range.end, carry, may_stream); });
}

void RowSweeps::for_runs(const std::vector<int>& wanted, const Range& range, Carry& carry, const Body& body) {
  if (form_.run_axes() == 0) return body();
  at_.go_to_run(range.first_run);
  for_each(range.first_run, range.last_run, 1, carry, [&](const Number& run) {
    begin_run(wanted, kept_steps_.empty() ? Number(0) : (run - range.first_run) * range.length() * 8);
    body();
    at_.next_run();
  });
  run_offset_ = 0;
}

void RowSweeps::begin_run(const std::vector<int>& wanted, const Number& kept_offset) {
  at_.begin_run();
  run_offset_ = kept_offset;
  for (const int step : found_) elements_.find_kept(step, kept(step));
  elements_.compute_run(wanted);
}

void RowSweeps::elements(const Sweep& s, const Number& begin, const Number& end, Carry& carry, bool may_stream) {
  std::vector<const Layout*> stores;
  for (const int t : s.stores)
    if (const Layout& p = form_.stores[static_cast<std::size_t>(t)]; !p.summed) stores.push_back(&p);
  std::optional<Number> aligned;
  if (form_.streams && may_stream && !stores.empty()) aligned = first_aligned(stores, at_, begin, end);
  walk(form_, begin, end, aligned, carry,
       [&](const Window& window, bool past_caches) { take_window(s, window, carry, past_caches); });
}

/// Sums that floats hold for so many elements alone.
void RowSweeps::chunks(Sweep& s, const Range& range, Carry& carry) {
  const Carry pivot = pivots(s, range);
  for (std::size_t k = 0; k < pivot.size(); ++k) s.moments[k].begin(carry, pivot[k].name);
  const std::int64_t chunk = elements_of_chunk(form_);
  for_runs(s.wanted, range, carry, [&] {
    for_each(range.begin, range.end + (chunk - 1), chunk, carry, [&](const Number& i) {
      for (RowMoments& m : s.moments) m.begin_chunk(carry);
      for (RowReduction& r : s.reductions)
        if (r.by_chunks()) r.begin_chunk(carry);
      elements(s, i, least(i + chunk, range.end), carry, false);
      for (auto r = s.reductions.rbegin(); r != s.reductions.rend(); ++r)
        if (r->by_chunks()) r->end_chunk(carry, i);
      for (auto m = s.moments.rbegin(); m != s.moments.rend(); ++m) m->end_chunk(carry);
    });
  });
}

/// Takes pivots from the first registers, or where there is less from the first elements alone.
Carry RowSweeps::pivots(const Sweep& s, const Range& range) {
  Carry all;
  for (std::size_t k = 0; k < s.moments.size(); ++k) all.push_back({vector_of("float"), splat("float", "0.0")});
  if (all.empty()) return all;
  const auto take = [&](const Window& window) {
    elements_.compute(s.wanted, window);
    for (std::size_t k = 0; k < all.size(); ++k) all[k].name = s.moments[k].pivot_of(elements_, window);
  };
  if (form_.run_axes() > 0) {
    at_.go_to_run(range.first_run);
    begin_run(s.wanted, 0);
  }
  const Window whole{range.begin, form_.registers, std::nullopt};
  if (form_.begins_with_registers()) {
    take(whole);
    return all;
  }
  const std::int64_t lanes = form_.lanes;
  when(
      Number(lanes * form_.registers) <= range.length(), all, [&] { take(whole); },
      [&] { take({range.begin, 1, least(lanes, range.length())}); });
  return all;
}

RowMoments::Moments RowSweeps::moments(const RowMoments& m, const Range& range, const Carry& carry) {
  const RowMoments::Moments taken = m.finish(carry, range.runs(), range.length());
  Carry values = {{"double", taken.mean}, {"double", taken.squares}};
  when(RowMoments::are_lost(taken), values, [&] { take_again(m, range, values); });
  return {values[0].name, values[1].name, taken.about_pivots};
}

/// By two sweeps, one register after the other.
void RowSweeps::take_again(const RowMoments& m, const Range& range, Carry& values) {
  const std::string doubles = vector_of("double"), zero = splat("double", "-0.0");
  const std::vector<int> wanted = {m.argument()};
  const auto sum = [&](const std::function<std::string(const std::string&)>& term) {
    Carry all = {{doubles, zero}};
    for_runs(wanted, range, all, [&] {
      for_each(range.begin, range.end + (form_.lanes - 1), form_.lanes, all, [&](const Number& i) {
        const Window window{i, 1, least(form_.lanes, range.end - i)};
        elements_.compute(wanted, window);
        const std::string x = elements_.value(m.argument(), 0).name;
        const std::string wide = emit("fpext " + vector_of("float") + " " + x + " to " + doubles);
        const std::string counted = emit("select " + vector_of("i1") + " " + mask_of(*window.count) + ", " + doubles +
                                         " " + term(wide) + ", " + doubles + " " + zero);
        all[0].name = wide_sum(all[0].name, counted);
      });
    });
    return sum_of_lanes(all[0].name);
  };
  const std::string count = emit("sitofp i64 " + range.count().name() + " to double");
  values[0].name = emit("fdiv double " + sum([](const std::string& x) { return x; }) + ", " + count);
  const std::string rounded = emit("fptrunc double " + values[0].name + " to float");
  const std::string centre = broadcast({emit("fpext float " + rounded + " to double"), DType::kFloat64, false}).name;
  values[1].name = sum([&](const std::string& x) {
    const std::string away = emit("fsub " + doubles + " " + x + ", " + centre);
    return emit("fmul " + doubles + " " + away + ", " + away);
  });
}

void RowSweeps::take_window(const Sweep& s, const Window& window, Carry& carry, bool past_caches) {
  if (s.fetches) fetches_.take(window, *s.fetches, s.share);
  elements_.compute(s.wanted, window);
  for (const RowReduction& r : s.reductions) r.take(carry, elements_, window);
  for (const RowMoments& m : s.moments) m.take(carry, elements_, window);
  for (const int step : s.keeps) elements_.keep(step, kept(step), window);
  // Loads of sums wait for stores before them whose addresses look alike: sums come first.
  for (const bool summed : {true, false})
    for (const int t : s.stores) {
      const Store& store = form_.kernel.stores[static_cast<std::size_t>(t)];
      const Layout& to = form_.stores[static_cast<std::size_t>(t)];
      if (to.summed != summed) continue;
      if (summed)
        elements_.add_to(to, store.to.dtype, store.step, window);
      else
        elements_.store(to, store.to.dtype, store.step, window, past_caches);
    }
}

void RowSweeps::clear_sums(const Range& row) {
  Carry nothing;
  for (std::size_t t = 0; t < form_.stores.size(); ++t) {
    const Layout& to = form_.stores[t];
    if (!to.summed) continue;
    for_runs({}, row, nothing, [&] {
      walk(form_, row.begin, row.end, std::nullopt, nothing,
           [&](const Window& window, bool) { elements_.clear(to, form_.kernel.stores[t].to.dtype, window); });
    });
  }
}

}  // namespace kfusion::cpu::ir
