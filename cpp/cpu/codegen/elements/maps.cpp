#include "cpu/codegen/elements/maps.hpp"

#include "cpu/codegen/elements/fetches.hpp"
#include "cpu/codegen/elements/row_copies.hpp"
#include "cpu/codegen/elements/walk.hpp"

namespace kfusion::cpu::ir {
namespace {

class MapText {
 public:
  explicit MapText(const Form& form)
      : form_(form), at_(form), elements_(form, at_), copies_(form, at_), fetches_(form, at_) {
    for (int t = 0; t < std::ssize(form.stores); ++t) {
      const Layout& to = layout(t);
      const bool is_number = to.reach <= Reach::kOfRow && !form.is_vector(store(t).step);
      (is_number ? numbers_ : stores_).push_back(t);
      if (is_number) continue;
      wanted_.push_back(store(t).step);
      if (!to.copied) direct_.push_back(&to);
    }
  }

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    elements_.compute_constants();
    fetches_.begin_within_row();
    copies_.begin();
    if (form_.row_axes == 0) return row();
    at_.go_to(Number("%row"));
    for_each(Number("%row"), Number("%last_row"), 1, [this](const Number&) {
      at_.begin_row();
      elements_.compute_row(0);
      copies_.begin_row();
      row();
      at_.next_row();
    });
  }

 private:
  const Store& store(int t) const { return form_.kernel.stores[static_cast<std::size_t>(t)]; }
  const Layout& layout(int t) const { return form_.stores[static_cast<std::size_t>(t)]; }

  void row() {
    const Number begin("%begin"), end("%end");
    if (!numbers_.empty())
      when(begin == 0, [&] {
        for (const int t : numbers_) elements_.store_number(layout(t), store(t).to.dtype, store(t).step);
      });
    form_.joins_rows ? blocks(begin, end) : elements(begin, end);
  }
  /// Takes short rows.
  void blocks(const Number& begin, const Number& end) {
    const Number cols = at_.integer(form_.extent(form_.axes - 1)), block = at_.integer(form_.block());
    const Number last = quotient(end, cols);
    for_each(quotient(begin, cols), last + (block - 1), block, [&](const Number& first) {
      const Number rows = least(block, last - first);
      copies_.load(first, rows);
      elements(first * cols, (first + rows) * cols);
      copies_.store(first, rows);
    });
  }
  void elements(const Number& begin, const Number& end) {
    std::optional<Number> aligned;
    if (form_.streams && !direct_.empty()) aligned = first_aligned(direct_, at_, begin, end);
    Carry nothing;
    walk(form_, begin, end, aligned, nothing,
         [this](const Window& window, bool past_caches) { take(window, past_caches); });
  }
  void take(const Window& window, bool past_caches) {
    fetches_.take(window, Fetch::kFar);
    elements_.compute(wanted_, window);
    for (const int t : stores_)
      elements_.store(layout(t), store(t).to.dtype, store(t).step, window, past_caches && !layout(t).copied);
  }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  RowCopies copies_;
  Fetches fetches_;
  std::vector<int> wanted_, stores_, numbers_;  ///< of stores: those of elements, and of a number for all of a row
  std::vector<const Layout*> direct_;
};

}  // namespace

void write_map(const Form& form) { MapText(form).write(); }

}  // namespace kfusion::cpu::ir
