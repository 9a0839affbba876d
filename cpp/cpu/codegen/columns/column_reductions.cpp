#include "cpu/codegen/columns/column_reductions.hpp"

namespace kfusion::cpu::ir {
namespace {

Pointer place_of(const Pointer& array, DType held, const Window& window, int j) {
  const auto item = static_cast<std::int64_t>(item_bytes(held));
  return array + (window.first + std::int64_t{text().lanes()} * j) * item;
}

}  // namespace

std::string ColumnAccumulators::loaded(const Pointer& array, DType held, const Window& window, int j) const {
  const std::string raw =
      emit("load " + vector_of(memory_type(held)) + ", ptr " + place_of(array, held, window, j).name + ", align 1");
  return widen({raw, held, true}, held).name;
}

/// Other registers may have what lies behind a part of one.
void ColumnAccumulators::save(const std::string& mine, const Pointer& array, DType held, const Window& window,
                              int j) const {
  const std::string type = vector_of(compute_type(held));
  std::string all = mine;
  if (window.count)
    all = emit("select " + vector_of("i1") + " " + mask_of(*window.count) + ", " + type + " " + mine + ", " + type +
               " " + loaded(array, held, window, j));
  text().line("store " + vector_of(memory_type(held)) + " " + narrow({all, held, true}, held).name + ", ptr " +
              place_of(array, held, window, j).name + ", align 1");
}

void ColumnReduction::begin(Carry& carry, const Addresses&, int registers) {
  first_ = carry.size(), registers_ = static_cast<std::size_t>(registers);
  for (int j = 0; j < registers; ++j) carry.push_back({type(), splat(lane_, identity_)});
}

void ColumnReduction::take(Carry& carry, const Elements& elements, const Addresses&, int registers) const {
  for (int j = 0; j < registers; ++j)
    accumulator(carry, j) = combine(accumulator(carry, j), lift(elements.value(argument_, j)));
}

void ColumnReduction::merge(Carry& carry, const Carry& others, std::size_t first) const {
  for (std::size_t j = first_; j < first_ + registers_; ++j)
    carry[j].name = combine(carry[j].name, others[first + j].name);
}

std::vector<Value> ColumnReduction::finish(const Carry& carry, int registers, const Number& rows) const {
  std::vector<Value> values;
  for (int j = 0; j < registers; ++j)
    values.push_back(finished(carry[first_ + static_cast<std::size_t>(j)].name, rows));
  return values;
}

void ColumnReduction::load(Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer from = array(arrays);
  for (int j = 0; j < window.registers; ++j) accumulator(carry, j) = loaded(from, held_, window, j);
}

void ColumnReduction::save(const Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer to = array(arrays);
  for (int j = 0; j < window.registers; ++j)
    ColumnAccumulators::save(carry[first_ + static_cast<std::size_t>(j)].name, to, held_, window, j);
}

void ColumnReduction::join(Carry& carry, const ColumnArrays& arrays, const Window& window) const {
  const Pointer from = array(arrays);
  for (int j = 0; j < window.registers; ++j)
    accumulator(carry, j) = combine(accumulator(carry, j), loaded(from, held_, window, j));
}

}  // namespace kfusion::cpu::ir
