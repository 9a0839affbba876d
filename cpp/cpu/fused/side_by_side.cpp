#include "cpu/fused/side_by_side.hpp"

#include <algorithm>

#include "cpu/fused/tile_steps.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kMostColumns = 256, kLeastTogether = 64, kTogether = 1024, kLeastRows = 64;

/// Along rows that follow each other, or the same for all rows.
bool lies_so(const Operand& o, std::int64_t cols) {
  return o.reduced[0] == 0 || (o.reduced[0] == cols && o.kept[0] == 1);
}

}  // namespace

std::int64_t rows_side_by_side(const Kernel& k) {
  const bool is_flat = k.kind == Pattern::kColumns && k.kept.size() == 1 && k.reduced.size() == 1;
  if (!is_flat || !k.tables.empty() || !k.iotas.empty() || k.parts() > 0) return 1;
  const std::int64_t cols = k.kept[0], rows = k.reduced[0];
  if (cols > kMostColumns) return 1;
  const bool fits =
      std::ranges::all_of(k.loads, [=](const Operand& o) { return lies_so(o, cols); }) &&
      std::ranges::all_of(k.stores, [=](const Store& s) { return lies_so(s.to, cols); }) &&
      std::ranges::all_of(k.steps, [](const Step& s) { return lane_bytes(s.dtype) == 4 && lane_bytes(s.from) == 4; });
  if (!fits) return 1;
  std::int64_t count = 1;
  while (2 * count * cols <= kTogether && rows % (2 * count) == 0 && rows / (2 * count) >= kLeastRows) count *= 2;
  return count * cols >= kLeastTogether ? count : 1;
}

Kernel side_by_side(const Kernel& k, std::int64_t count) {
  Kernel made = k;
  const auto lay = [count](Operand& o) {
    o.kept = {o.reduced[0], o.kept[0]};
    o.reduced[0] *= count;
  };
  made.kept = {count, k.kept[0]};
  made.reduced = {k.reduced[0] / count};
  for (Operand& o : made.loads) lay(o);
  for (Store& s : made.stores) lay(s.to);
  return made;
}

}  // namespace kfusion::cpu
