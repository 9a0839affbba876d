#include "cpu/codegen/form/side_by_side.hpp"

#include <algorithm>

#include "cpu/codegen/form/policy.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {
namespace {

/// Rows follow each other, or all are one.
bool lies_so(const Operand& o, std::int64_t columns) {
  return o.reduced[0] == 0 || (o.reduced[0] == columns && o.kept.back() == 1);
}

bool follow_each_other(const Kernel& k) {
  const std::int64_t columns = k.kept.back();
  return k.iotas.empty() && k.tables.empty() &&
         std::ranges::all_of(k.loads, [=](const Operand& o) { return lies_so(o, columns); }) &&
         std::ranges::all_of(k.stores, [=](const Store& s) { return s.parts == 0 && lies_so(s.to, columns); });
}

/// Registers that a row of so many columns takes: those behind the last tile are taken one by one, by masks.
double registers_of(std::int64_t columns, int lanes, int registers) {
  const std::int64_t tile = std::int64_t{lanes} * registers, rest = columns % tile;
  return static_cast<double>(columns / tile * registers + 2 * divide_up(rest, std::int64_t{lanes}));
}

}  // namespace

int rows_side_by_side(const Kernel& k, int lanes, int registers) {
  if (k.kind != Pattern::kColumns || k.reduced.size() != 1) return 1;
  const std::int64_t columns = k.kept.back(), rows = k.reduced[0];
  if (columns > kFewColumns || !follow_each_other(k)) return 1;
  int best = 1;
  double least = registers_of(columns, lanes, registers) / static_cast<double>(columns);
  const double worth = 0.9 * least;
  for (int n = 2; n * columns <= kSideBySideColumns && n * kLeastRowsAtOnce <= rows; ++n) {
    const double each = registers_of(n * columns, lanes, registers) / static_cast<double>(n * columns);
    if (each <= worth && each < least) best = n, least = each;
  }
  return best;
}

}  // namespace kfusion::cpu::ir
