// Kernels of rows that stay in the cache: one sweep over a row after the other, then the next row.
#include "cpu/codegen/row_sweeps.hpp"
#include "cpu/codegen/texts.hpp"

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
    sweeps_.take(s, row_, carry, true);
    for (const RowReduction& r : s.reductions) elements_.set_number(r.step(), r.finish(carry, row_.count()));
    for (const RowMoments& m : s.moments) {
      const RowMoments::Moments values = sweeps_.moments(m, row_, carry);
      elements_.set_number(m.mean(), m.mean_of(values.mean));
      elements_.set_number(m.squares(), m.squares_of(values.squares, row_.count()));
    }
    sweeps_.find_kept_by(s);
  }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  RowSweeps sweeps_;
  RowPlan plan_;
  Span row_;
};

}  // namespace

void write_rows(const Form& form) { RowsText(form).write(); }

}  // namespace kfusion::cpu::ir
