// Kernels of rows that stay in the cache: one sweep over a row after the other, then the next row.
#include <algorithm>

#include "cpu/codegen/policy.hpp"
#include "cpu/codegen/row_plan.hpp"
#include "cpu/codegen/texts.hpp"
#include "cpu/codegen/walk.hpp"

namespace kfusion::cpu::ir {
namespace {

class RowsText {
 public:
  explicit RowsText(const Form& form) : form_(form), at_(form), elements_(form, at_), plan_(form) {}

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    cols_ = at_.integer(form_.extent(form_.axes - 1));
    const Number pitch = (cols_ * 8 + kRowSlack) & -64;
    for (std::int64_t i = 0; i < std::ssize(plan_.kept); ++i)
      kept_rows_.push_back(at_.field(Field::kScratch) + pitch * i);
    elements_.compute_constants();
    at_.go_to(Number("%row"));
    for_each(Number("%row"), Number("%last_row"), 1, [this](const Number&) {
      at_.begin_row();
      row();
      at_.next_row();
    });
  }

 private:
  const Pointer& kept_row(int s) const {
    return kept_rows_[static_cast<std::size_t>(std::ranges::find(plan_.kept, s) - plan_.kept.begin())];
  }

  void row() {
    elements_.find_none();
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
    if (s.wanted.empty()) return;
    Carry carry;
    for (RowReduction& r : s.reductions) r.begin(carry);
    if (s.moments.empty() && std::ranges::none_of(s.reductions, &RowReduction::by_chunks))
      elements(s, 0, cols_, carry, true);
    else
      chunks(s, carry);
    for (const RowReduction& r : s.reductions) elements_.set_number(r.step(), r.finish(carry, cols_));
    for (RowMoments& m : s.moments) finish(m, carry);
    for (const int kept : s.keeps) elements_.find_kept(kept, kept_row(kept));
  }

  void elements(const Sweep& s, const Number& begin, const Number& end, Carry& carry, bool may_stream) {
    std::vector<const Place*> stores;
    for (const int t : s.stores) stores.push_back(&form_.stores[static_cast<std::size_t>(t)]);
    std::optional<Number> aligned;
    if (form_.streams && may_stream && !stores.empty()) aligned = first_aligned(stores, at_, begin, end);
    walk(form_, begin, end, aligned, carry,
         [&](const Part& part, bool past_caches) { take(s, part, carry, past_caches); });
  }

  /// Sums that floats hold for so many elements alone.
  void chunks(Sweep& s, Carry& carry) {
    if (!s.moments.empty()) elements_.compute(s.wanted, {0, form_.registers, std::nullopt});
    for (RowMoments& m : s.moments) m.begin(carry, elements_);
    const std::int64_t chunk = std::int64_t{form_.lanes} * form_.registers * kFloatSums;
    for_each(0, cols_ + (chunk - 1), chunk, carry, [&](const Number& i) {
      for (RowMoments& m : s.moments) m.begin_chunk(carry);
      for (RowReduction& r : s.reductions)
        if (r.by_chunks()) r.begin_chunk(carry);
      elements(s, i, least(i + chunk, cols_), carry, false);
      for (auto r = s.reductions.rbegin(); r != s.reductions.rend(); ++r)
        if (r->by_chunks()) r->end_chunk(carry);
      for (auto m = s.moments.rbegin(); m != s.moments.rend(); ++m) m->end_chunk(carry);
    });
  }

  void finish(const RowMoments& m, const Carry& carry) {
    const RowMoments::Moments taken = m.finish(carry, cols_);
    Carry values = {{"double", taken.mean}, {"double", taken.squares}};
    when(RowMoments::are_lost(taken), values, [&] { take_again(m, values); });
    elements_.set_number(m.mean(), m.mean_of(values[0].name));
    elements_.set_number(m.squares(), m.squares_of(values[1].name, cols_));
  }

  /// By two sweeps, one register after the other.
  void take_again(const RowMoments& m, Carry& values) {
    const std::string doubles = vector_of("double"), zero = splat("double", "-0.0");
    const std::vector<int> wanted = {m.argument()};
    const auto sum = [&](const std::function<std::string(const std::string&)>& term) {
      Carry all = {{doubles, zero}};
      for_each(0, cols_ + (form_.lanes - 1), form_.lanes, all, [&](const Number& i) {
        const Part part{i, 1, least(form_.lanes, cols_ - i)};
        elements_.compute(wanted, part);
        const std::string x = elements_.value(m.argument(), 0).name;
        const std::string wide = emit("fpext " + vector_of("float") + " " + x + " to " + doubles);
        const std::string counted = emit("select " + vector_of("i1") + " " + mask_of(*part.count) + ", " + doubles +
                                         " " + term(wide) + ", " + doubles + " " + zero);
        all[0].name = emit("fadd " + doubles + " " + all[0].name + ", " + counted);
      });
      return sum_of_lanes(all[0].name);
    };
    const std::string count = emit("sitofp i64 " + cols_.name() + " to double");
    values[0].name = emit("fdiv double " + sum([](const std::string& x) { return x; }) + ", " + count);
    const std::string rounded = emit("fptrunc double " + values[0].name + " to float");
    const std::string centre = broadcast({emit("fpext float " + rounded + " to double"), DType::kFloat64, false}).name;
    values[1].name = sum([&](const std::string& x) {
      const std::string away = emit("fsub " + doubles + " " + x + ", " + centre);
      return emit("fmul " + doubles + " " + away + ", " + away);
    });
  }

  void take(const Sweep& s, const Part& part, Carry& carry, bool past_caches) {
    elements_.compute(s.wanted, part);
    for (const RowReduction& r : s.reductions) r.take(carry, elements_, part);
    for (const RowMoments& m : s.moments) m.take(carry, elements_, part);
    for (const int kept : s.keeps) elements_.keep(kept, kept_row(kept), part);
    for (const int t : s.stores) {
      const Store& store = form_.kernel.stores[static_cast<std::size_t>(t)];
      elements_.store(form_.stores[static_cast<std::size_t>(t)], store.to.dtype, store.step, part, past_caches);
    }
  }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  RowPlan plan_;
  std::vector<Pointer> kept_rows_;
  Number cols_ = 0;
};

}  // namespace

void write_rows(const Form& form) { RowsText(form).write(); }

}  // namespace kfusion::cpu::ir
