#include "cpu/codegen/fetches.hpp"

namespace kfusion::cpu::ir {
namespace {

constexpr std::int64_t kBytesOfLine = 64;

}  // namespace

void Fetches::begin() {
  if (form_.row_axes == 0 || form_.run_axes() > 0) return;
  for (const Place& p : form_.loads)
    if (p.reach == Reach::kDense && p.by_rows) ahead_.emplace_back(&p, to_next_row(p));
}

void Fetches::take(const Part& part) const {
  if (part.count) return;
  for (const auto& [place, ahead] : ahead_) {
    const Pointer from = at_.row(*place) + ahead + part.first * place->item;
    const std::int64_t bytes = std::int64_t{form_.lanes} * part.registers * place->item;
    for (std::int64_t line = 0; line < bytes; line += kBytesOfLine) prefetch(from + line);
  }
}

void Fetches::shared_lines() const {
  if (form_.row_axes == 0 || form_.run_axes() > 0) return;
  for (const Place& p : form_.stores) {
    if (p.reach != Reach::kDense || !p.by_rows) continue;
    const Pointer next = at_.row(p) + to_next_row(p);
    when((address_of(next) & (kBytesOfLine - 1)) == 0, [] {}, [&] { prefetch(next, Fetch::kToWrite); });
  }
}

}  // namespace kfusion::cpu::ir
