#include "cpu/codegen/elements/fetches.hpp"

#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {
void Fetches::begin() {
  if (form_.row_axes == 0 || form_.run_axes() > 0) return;
  for (const Layout& p : form_.loads)
    if (p.reach == Reach::kDense && p.by_rows) {
      const Number rows = quotient(kBytesAhead, at_.integer(form_.extent(form_.axes - 1)) * p.item);
      ahead_.emplace_back(&p, to_next_row(p) * choose(rows == 0, 1, rows));
    }
}

void Fetches::take(const Window& window, Fetch how) const {
  if (window.count) return;
  for (const auto& [layout, ahead] : ahead_) {
    const Pointer from = at_.row(*layout) + ahead + window.first * layout->item;
    const std::int64_t bytes = std::int64_t{form_.lanes} * window.registers * layout->item;
    for (std::int64_t line = 0; line < bytes; line += kLine) prefetch(from + line, how);
  }
}

void Fetches::shared_lines() const {
  if (form_.row_axes == 0 || form_.run_axes() > 0) return;
  for (const Layout& p : form_.stores) {
    if (p.reach != Reach::kDense || !p.by_rows) continue;
    const Pointer next = at_.row(p) + to_next_row(p);
    when((address_of(next) & (kLine - 1)) == 0, [] {}, [&] { prefetch(next, Fetch::kToWrite); });
  }
}

}  // namespace kfusion::cpu::ir
