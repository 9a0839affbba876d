// Reductions over rows whose lanes are columns: accumulators take one row after the other, and fold no lanes.
#pragma once
#include <vector>

#include "cpu/codegen/reductions.hpp"

namespace kfusion::cpu::ir {

class ColumnReduction : public Reduction {
 public:
  using Reduction::Reduction;

  int argument() const { return argument_; }
  /// Accumulators of so many registers that have taken nothing, behind those in `carry`.
  void begin(Carry& carry, int registers);
  void take(Carry& carry, const Elements& elements, int registers) const;
  std::vector<Value> finish(const Carry& carry, int registers, const Number& rows) const;

  /// Of an accumulator in memory, where those of columns are neighbours: a call may cut columns into other registers.
  std::int64_t item() const { return static_cast<std::int64_t>(item_bytes(held_)); }
  /// `array` is that of column 0.
  void load(Carry& carry, const Pointer& array, const Part& part) const;
  void save(const Carry& carry, const Pointer& array, const Part& part) const;
  /// Takes those of later rows, too.
  void join(Carry& carry, const Pointer& array, const Part& part) const;

 private:
  std::string& accumulator(Carry& carry, int j) const { return carry[first_ + static_cast<std::size_t>(j)].name; }
  Pointer place(const Pointer& array, const Part& part, int j) const;
  std::string loaded(const Pointer& array, const Part& part, int j) const;

  std::size_t first_ = 0;
};

}  // namespace kfusion::cpu::ir
