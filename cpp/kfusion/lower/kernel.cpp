#include "kfusion/lower/kernel.hpp"

#include <algorithm>

namespace kfusion {
namespace {

std::int64_t distinct(const Extents& extents, const Extents& strides) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i < extents.size(); ++i) n *= strides[i] == 0 ? 1 : extents[i];
  return n;
}

}  // namespace

bool Operand::per_row() const {
  return std::all_of(reduced.begin(), reduced.end(), [](std::int64_t stride) { return stride == 0; });
}

std::int64_t Kernel::rows() const { return product(kept); }
std::int64_t Kernel::cols() const { return product(reduced); }

std::int64_t Kernel::parts() const {
  const auto found = std::ranges::find_if(stores, [](const Store& s) { return s.parts > 0; });
  return found == stores.end() ? 0 : found->parts;
}

std::int64_t Kernel::bytes() const {
  std::int64_t total = 0;
  const auto add = [&](const Operand& o, std::int64_t times = 1) {
    total +=
        times * distinct(kept, o.kept) * distinct(reduced, o.reduced) * static_cast<std::int64_t>(item_bytes(o.dtype));
  };
  for (const Operand& load : loads) add(load);
  for (const Store& store : stores) add(store.to, std::max<std::int64_t>(store.parts, 1));
  for (const Step& s : steps) {
    if (s.kind != StepKind::kTake) continue;
    const auto item = static_cast<std::int64_t>(item_bytes(tables[at(s.index)].from.dtype));
    total += rows() * (s.level == Level::kRow ? 1 : cols()) * item;
  }
  return total;
}

}  // namespace kfusion
