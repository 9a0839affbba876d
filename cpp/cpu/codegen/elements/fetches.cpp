#include "cpu/codegen/elements/fetches.hpp"

#include <algorithm>

#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {
void Fetches::begin() {
  if (form_.row_axes == 0 || form_.run_axes() > 0) return;
  for (const Layout& p : form_.loads)
    if (p.reach == Reach::kDense && p.by_rows) {
      const Number bytes = at_.integer(form_.extent(form_.axes - 1)) * p.item;
      const Number rows =
          form_.pages_in_turn ? quotient(bytes + (kBytesInTurn - 1), bytes) : quotient(kBytesAhead, bytes);
      ahead_.emplace_back(&p, to_next_row(p) * choose(rows == 0, 1, rows));
    }
}

void Fetches::begin_within_row() {
  if (!form_.pages_in_turn) return;
  for (const Layout& p : form_.loads)
    if (p.reach == Reach::kDense && !p.copied && (p.by_rows || form_.row_axes == 0))
      ahead_.emplace_back(&p, kBytesInTurn);
}

void Fetches::take(const Window& window, Fetch how, std::optional<int> share) const {
  if (window.count) return;
  for (const auto& [place, ahead] : ahead_) {
    const Pointer here = at_.row(*place) + window.first * place->item;
    const std::int64_t bytes = std::int64_t{form_.lanes} * window.registers * place->item;
    if (form_.pages_in_turn) {
      take_pages(here, ahead, bytes, how, share);
      continue;
    }
    for (std::int64_t line = 0; line < bytes; line += kLine) prefetch(here + ahead + line, how);
  }
}

/// As many lines as are read here, of pages ahead: the first line of each, then the second of each. Where two sweeps
/// share them, each has half of the pages.
void Fetches::take_pages(const Pointer& here, const Number& ahead, std::int64_t bytes, Fetch how,
                         std::optional<int> share) const {
  const int shares = share ? 2 : 1;
  const std::int64_t pages = kPagesInTurn / shares, lines = std::max<std::int64_t>(bytes / kLine / shares, 1);
  const Number address = address_of(here), within = address & (kBytesInTurn - 1);
  Number to = quotient(within, kPagesInTurn) & (kPage - kLine);
  if (lines < pages) to = to + (quotient(within, kLine * shares) & (pages - lines)) * kPage;
  const Pointer first = here + (to - within + ahead + share.value_or(0) * pages * kPage);
  for (std::int64_t i = 0; i < lines; ++i) prefetch(first + (i % pages * kPage + i / pages * kLine), how);
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
