// The largest or smallest element of each column and the first row that has it, in one sweep: argmax and argmin.
#pragma once
#include <vector>

#include "cpu/codegen/columns/column_reductions.hpp"

namespace kfusion::cpu::ir {

/// A reduction to the extreme, which remembers where it was found.
class ColumnSearch : public ColumnAccumulators {
 public:
  ColumnSearch(const Form& form, const Search& search);

  int result() const override { return search_.reduction; }
  void begin(Carry& carry, const Addresses& at, int registers) override;
  void take(Carry& carry, const Elements& elements, const Addresses& at, int registers) const override;
  std::vector<Value> finish(const Carry& carry, int registers, const Number& rows) const override;
  void load(Carry& carry, const ColumnArrays& arrays, const Window& window) const override;
  void save(const Carry& carry, const ColumnArrays& arrays, const Window& window) const override;
  void join(Carry& carry, const ColumnArrays& arrays, const Window& window) const override;

 private:
  std::string position(const Addresses& at) const;
  void take(Carry& carry, int j, const std::string& x, const std::string& position) const;
  std::string& extreme(Carry& carry, int j) const { return carry[first_ + 2 * static_cast<std::size_t>(j)].name; }
  std::string& found(Carry& carry, int j) const { return carry[first_ + 2 * static_cast<std::size_t>(j) + 1].name; }
  Pointer extremes(const ColumnArrays& arrays) const;
  Pointer positions(const ColumnArrays& arrays) const { return arrays(search_.reduction, 4); }

  Search search_;
  const Layout& layout_;
  std::size_t first_ = 0;
};

}  // namespace kfusion::cpu::ir
