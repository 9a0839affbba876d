#include "cpu/codegen/columns/column_search.hpp"

#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

std::string vector_op(const std::string& op, const std::string& type, const std::string& a, const std::string& b) {
  return emit(op + " " + type + " " + a + ", " + b);
}

}  // namespace

ColumnSearch::ColumnSearch(const Form& form, const Search& search)
    : ColumnAccumulators(form, search.number),
      search_(search),
      layout_(form.iotas[static_cast<std::size_t>(form.kernel.step(search.place).index)]) {}

std::string ColumnSearch::position(const Addresses& at) const {
  const std::string row = emit("trunc i64 " + at.first_number(layout_).name() + " to i32");
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
  const DType to = compute_dtype(form_.kernel.step(search_.reduction).dtype);
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
