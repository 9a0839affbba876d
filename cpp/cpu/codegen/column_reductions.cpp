#include "cpu/codegen/column_reductions.hpp"

namespace kfusion::cpu::ir {

void ColumnReduction::begin(Carry& carry, int registers) {
  first_ = carry.size();
  for (int j = 0; j < registers; ++j) carry.push_back({type(), splat(lane_, identity_)});
}

void ColumnReduction::take(Carry& carry, const Elements& elements, int registers) const {
  for (int j = 0; j < registers; ++j)
    accumulator(carry, j) = combine(accumulator(carry, j), lift(elements.value(argument_, j)));
}

std::vector<Value> ColumnReduction::finish(const Carry& carry, int registers, const Number& rows) const {
  std::vector<Value> values;
  for (int j = 0; j < registers; ++j)
    values.push_back(finished(carry[first_ + static_cast<std::size_t>(j)].name, rows));
  return values;
}

Pointer ColumnReduction::place(const Pointer& array, const Part& part, int j) const {
  return array + (part.first + std::int64_t{form_.lanes} * j) * item();
}

std::string ColumnReduction::loaded(const Pointer& array, const Part& part, int j) const {
  const std::string raw =
      emit("load " + vector_of(memory_type(held_)) + ", ptr " + place(array, part, j).name + ", align 1");
  return widen({raw, held_, true}, held_).name;
}

void ColumnReduction::load(Carry& carry, const Pointer& array, const Part& part) const {
  for (int j = 0; j < part.registers; ++j) accumulator(carry, j) = loaded(array, part, j);
}

/// Other registers may have what lies behind a part of one.
void ColumnReduction::save(const Carry& carry, const Pointer& array, const Part& part) const {
  for (int j = 0; j < part.registers; ++j) {
    std::string mine = carry[first_ + static_cast<std::size_t>(j)].name;
    if (part.count)
      mine = emit("select " + vector_of("i1") + " " + mask_of(*part.count) + ", " + type() + " " + mine + ", " +
                  type() + " " + loaded(array, part, j));
    const std::string raw = narrow({mine, held_, true}, held_).name;
    text().line("store " + vector_of(memory_type(held_)) + " " + raw + ", ptr " + place(array, part, j).name +
                ", align 1");
  }
}

void ColumnReduction::join(Carry& carry, const Pointer& array, const Part& part) const {
  for (int j = 0; j < part.registers; ++j)
    accumulator(carry, j) = combine(accumulator(carry, j), loaded(array, part, j));
}

}  // namespace kfusion::cpu::ir
