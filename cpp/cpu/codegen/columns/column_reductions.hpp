// Reductions over rows whose lanes are columns: accumulators take one row after the other, and fold no lanes.
#pragma once
#include <functional>
#include <vector>

#include "cpu/codegen/rows/reductions.hpp"

namespace kfusion::cpu::ir {

/// Where a block's accumulators of a step lie in memory, that have so many bytes each: column 0. Those of neighbours
/// are neighbours: a call may cut columns into other registers.
using ColumnArrays = std::function<Pointer(int step, std::int64_t item)>;

class ColumnAccumulators : public Reduction {
 public:
  using Reduction::Reduction;
  virtual ~ColumnAccumulators() = default;

  /// The step whose values finish() gives.
  virtual int result() const { return step(); }
  /// Those of so many registers, behind those in `carry`, before the row where the addresses are.
  virtual void begin(Carry& carry, const Addresses& at, int registers) = 0;
  virtual void take(Carry& carry, const Elements& elements, const Addresses& at, int registers) const = 0;
  /// Whether accumulators of some rows can be added to those of others, in any order of rows.
  virtual bool merges() const { return false; }
  /// Takes those that begin at `first` of another list.
  virtual void merge(Carry&, const Carry&, std::size_t) const {}
  virtual std::vector<Value> finish(const Carry& carry, int registers, const Number& rows) const = 0;

  virtual void load(Carry& carry, const ColumnArrays& arrays, const Window& window) const = 0;
  virtual void save(const Carry& carry, const ColumnArrays& arrays, const Window& window) const = 0;
  /// Takes those of later rows, too.
  virtual void join(Carry& carry, const ColumnArrays& arrays, const Window& window) const = 0;

 protected:
  /// A register of accumulators of a type in memory.
  std::string loaded(const Pointer& array, DType held, const Window& window, int j) const;
  void save(const std::string& mine, const Pointer& array, DType held, const Window& window, int j) const;
};

class ColumnReduction : public ColumnAccumulators {
 public:
  using ColumnAccumulators::ColumnAccumulators;

  void begin(Carry& carry, const Addresses& at, int registers) override;
  void take(Carry& carry, const Elements& elements, const Addresses& at, int registers) const override;
  std::vector<Value> finish(const Carry& carry, int registers, const Number& rows) const override;
  bool merges() const override { return true; }
  void merge(Carry& carry, const Carry& others, std::size_t first) const override;
  void load(Carry& carry, const ColumnArrays& arrays, const Window& window) const override;
  void save(const Carry& carry, const ColumnArrays& arrays, const Window& window) const override;
  void join(Carry& carry, const ColumnArrays& arrays, const Window& window) const override;

 private:
  std::string& accumulator(Carry& carry, int j) const { return carry[first_ + static_cast<std::size_t>(j)].name; }
  Pointer array(const ColumnArrays& arrays) const {
    return arrays(step(), static_cast<std::int64_t>(item_bytes(held_)));
  }

  std::size_t first_ = 0, registers_ = 0;
};

}  // namespace kfusion::cpu::ir
