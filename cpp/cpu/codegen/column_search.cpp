#include "cpu/codegen/column_search.hpp"

#include <algorithm>
#include <limits>

#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

using Steps = std::vector<bool>;

const Step& step_of(const Kernel& k, int s) { return k.steps[static_cast<std::size_t>(s)]; }

/// Steps from a search's extreme to its position, without these, its elements and its places.
Steps steps_between(const Kernel& k, const Search& search) {
  Steps all(k.steps.size(), false);
  all[static_cast<std::size_t>(search.reduction)] = true;
  for (int s = search.reduction; s >= 0; --s) {
    if (!all[static_cast<std::size_t>(s)] || s == search.number) continue;
    for (const int a : step_of(k, s).arguments)
      if (a != search.x && step_of(k, a).kind != StepKind::kConstant) all[static_cast<std::size_t>(a)] = true;
  }
  all[static_cast<std::size_t>(search.reduction)] = false;
  return all;
}

bool is_used_elsewhere(const Kernel& k, const Search& search, const Steps& between) {
  const auto is_between = [&](int s) { return bool(between[static_cast<std::size_t>(s)]); };
  for (int s = 0; s < std::ssize(k.steps); ++s)
    if (!is_between(s) && s != search.reduction && std::ranges::any_of(step_of(k, s).arguments, is_between))
      return true;
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
  const Step &number = step_of(k, search.number), &x = step_of(k, search.x);
  const DType type = compute_dtype(number.from);
  const bool is_extreme = number.kind == StepKind::kReduce && (number.op == Op::max || number.op == Op::min);
  if (!is_extreme || number.arguments[0] != search.x || type == DType::kBool || compute_dtype(x.dtype) != type)
    return false;
  if (is_float(type) && !search.nan) return false;
  return counts_rows(k, step_of(k, search.place)) && !is_used_elsewhere(k, search, steps_between(k, search));
}

std::string vector_op(const std::string& op, const std::string& type, const std::string& a, const std::string& b) {
  return emit(op + " " + type + " " + a + ", " + b);
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

ColumnSearch::ColumnSearch(const Form& form, const Search& search)
    : ColumnAccumulators(form, search.number),
      search_(search),
      place_(form.iotas[static_cast<std::size_t>(step_of(form.kernel, search.place).index)]) {}

std::string ColumnSearch::position(const Addresses& at) const {
  const std::string row = emit("trunc i64 " + at.first_number(place_).name() + " to i32");
  return broadcast({row, DType::kInt32, false}).name;
}

void ColumnSearch::begin(Carry& carry, const Addresses& at, int registers) {
  first_ = carry.size();
  const std::string row = position(at);
  for (int j = 0; j < registers; ++j)
    carry.push_back({type(), splat(lane_, identity_)}), carry.push_back({vector_of("i32"), row});
}

/// A NaN is an extreme, and the first one stays.
void ColumnSearch::take(Carry& carry, int j, const std::string& x, const std::string& position) const {
  std::string &best = extreme(carry, j), &where = found(carry, j);
  const bool largest = op_ == Op::max;
  std::string better = vector_op(is_float(from_) ? largest ? "fcmp ugt" : "fcmp ult"
                                 : largest       ? "icmp sgt"
                                                 : "icmp slt",
                                 type(), x, best);
  if (is_float(from_)) better = vector_op("and", vector_of("i1"), better, vector_op("fcmp ord", type(), best, best));
  const std::string choose = "select " + vector_of("i1") + " " + better + ", ", numbers = vector_of("i32");
  best = emit(choose + type() + " " + x + ", " + type() + " " + best);
  where = emit(choose + numbers + " " + position + ", " + numbers + " " + where);
}

void ColumnSearch::take(Carry& carry, const Elements& elements, const Addresses& at, int registers) const {
  const std::string row = position(at);
  for (int j = 0; j < registers; ++j) take(carry, j, elements.value(argument_, j).name, row);
}

std::vector<Value> ColumnSearch::finish(const Carry& carry, int registers, const Number&) const {
  const DType to = compute_dtype(step_of(form_.kernel, search_.reduction).dtype);
  std::vector<Value> values;
  for (int j = 0; j < registers; ++j)
    values.push_back(
        cast({carry[first_ + 2 * static_cast<std::size_t>(j) + 1].name, DType::kInt32, true}, DType::kInt32, to));
  return values;
}

Pointer ColumnSearch::extremes(const ColumnArrays& arrays) const {
  return arrays(step(), static_cast<std::int64_t>(item_bytes(from_)));
}

void ColumnSearch::load(Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer best = extremes(arrays), where = positions(arrays);
  for (int j = 0; j < window.registers; ++j) {
    extreme(carry, j) = loaded(best, from_, window, j);
    found(carry, j) = loaded(where, DType::kInt32, window, j);
  }
}

void ColumnSearch::save(const Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer best = extremes(arrays), where = positions(arrays);
  for (int j = 0; j < window.registers; ++j) {
    const std::size_t at = first_ + 2 * static_cast<std::size_t>(j);
    ColumnAccumulators::save(carry[at].name, best, from_, window, j);
    ColumnAccumulators::save(carry[at + 1].name, where, DType::kInt32, window, j);
  }
}

void ColumnSearch::join(Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer best = extremes(arrays), where = positions(arrays);
  for (int j = 0; j < window.registers; ++j)
    take(carry, j, loaded(best, from_, window, j), loaded(where, DType::kInt32, window, j));
}

}  // namespace kfusion::cpu::ir
