// Elementwise kernels, row by row along the last axis.
#include "cpu/codegen/texts.hpp"
#include "cpu/codegen/walk.hpp"

namespace kfusion::cpu::ir {
namespace {

class MapText {
 public:
  explicit MapText(const Form& form) : form_(form), at_(form), elements_(form, at_) {
    for (const Store& s : form.kernel.stores) wanted_.push_back(s.step);
    for (const Place& p : form.stores) stores_.push_back(&p);
  }

  void write() {
    text().libm = at_.field(Field::kLibm).name;
    elements_.compute_constants();
    if (form_.row_axes == 0) return row();
    at_.go_to(Number("%row"));
    for_each(Number("%row"), Number("%last_row"), 1, [this](const Number&) {
      at_.begin_row();
      elements_.compute_row(0);
      row();
      at_.next_row();
    });
  }

 private:
  void row() {
    const Number begin("%begin"), end("%end");
    std::optional<Number> aligned;
    if (form_.streams) aligned = first_aligned(stores_, at_, begin, end);
    Carry nothing;
    walk(form_, begin, end, aligned, nothing, [this](const Part& part, bool past_caches) { take(part, past_caches); });
  }
  void take(const Part& part, bool past_caches) {
    elements_.compute(wanted_, part);
    for (std::size_t k = 0; k < form_.stores.size(); ++k) {
      const Store& s = form_.kernel.stores[k];
      elements_.store(form_.stores[k], s.to.dtype, s.step, part, past_caches);
    }
  }

  const Form& form_;
  Addresses at_;
  Elements elements_;
  std::vector<int> wanted_;
  std::vector<const Place*> stores_;
};

}  // namespace

void write_map(const Form& form) { MapText(form).write(); }

}  // namespace kfusion::cpu::ir
