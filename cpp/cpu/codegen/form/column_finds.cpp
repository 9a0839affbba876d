#include "cpu/codegen/form/column_finds.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "cpu/codegen/math/ops.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

using Steps = std::vector<bool>;

/// Steps from a search's extreme to its position, without these, its elements and its places.
Steps steps_between(const Kernel& k, const Search& search) {
  Steps all(k.steps.size(), false);
  all[static_cast<std::size_t>(search.reduction)] = true;
  for (int s = search.reduction; s >= 0; --s) {
    if (!all[static_cast<std::size_t>(s)] || s == search.number) continue;
    for (const int a : k.step(s).arguments)
      if (a != search.x && k.step(a).kind != StepKind::kConstant) all[static_cast<std::size_t>(a)] = true;
  }
  all[static_cast<std::size_t>(search.reduction)] = false;
  return all;
}

bool is_used_elsewhere(const Kernel& k, const Search& search, const Steps& between) {
  const auto is_between = [&](int s) { return bool(between[static_cast<std::size_t>(s)]); };
  for (int s = 0; s < std::ssize(k.steps); ++s)
    if (!is_between(s) && s != search.reduction && std::ranges::any_of(k.step(s).arguments, is_between)) return true;
  return std::ranges::any_of(k.stores, [&](const Store& t) { return is_between(t.step); });
}

/// Numbers of rows, of 32 bits, that ascend: the first row that has an extreme is the one with the least of them.
bool counts_rows(const Kernel& k, const Step& place) {
  if (place.kind != StepKind::kIota) return false;
  const Operand& o = k.iotas[static_cast<std::size_t>(place.index)];
  if (std::ranges::any_of(o.kept, [](std::int64_t s) { return s != 0; })) return false;
  std::int64_t within = 0;  // of the axes within
  for (std::size_t a = k.reduced.size(); a-- > 0;) {
    if (k.reduced[a] > 1 && o.reduced[a] < within) return false;
    within += o.reduced[a] * (k.reduced[a] - 1);
  }
  return o.offset >= 0 && o.offset + within < std::numeric_limits<std::int32_t>::max();
}

bool is_taken(const Kernel& k, const Search& search) {
  const Step &number = k.step(search.number), &x = k.step(search.x);
  const DType type = compute_dtype(number.from);
  const bool is_extreme = number.kind == StepKind::kReduce && (number.op == Op::max || number.op == Op::min);
  if (!is_extreme || number.arguments[0] != search.x || type == DType::kBool || compute_dtype(x.dtype) != type)
    return false;
  if (is_float(type) && !search.nan) return false;
  return counts_rows(k, k.step(search.place)) && !is_used_elsewhere(k, search, steps_between(k, search));
}

}  // namespace

std::vector<Search> column_searches(const Kernel& k) {
  std::vector<Search> taken;
  std::ranges::copy_if(k.searches, std::back_inserter(taken), [&](const Search& s) { return is_taken(k, s); });
  return taken;
}

std::vector<bool> steps_of_searches(const Kernel& k) {
  Steps all(k.steps.size(), false);
  for (const Search& search : column_searches(k)) {
    const Steps between = steps_between(k, search);
    for (std::size_t s = 0; s < all.size(); ++s) all[s] = all[s] || between[s];
  }
  return all;
}

}  // namespace kfusion::cpu::ir
