// The values of a kernel's steps: numbers of the kernel and of a row, and registers of elements.
#pragma once
#include <optional>
#include <vector>

#include "cpu/codegen/elements/addresses.hpp"
#include "cpu/codegen/instructions/memory.hpp"
#include "cpu/codegen/math/divisor.hpp"
#include "cpu/codegen/math/ops.hpp"

namespace kfusion::cpu::ir {

/// Elements of a row: whole registers from `first` on, or `count` elements, at most those of one register.
struct Window {
  Number first = 0;
  int registers = 1;
  std::optional<Number> count = {};
};

/// Register j of a window's numbers that lie in memory (Layout::copied).
std::string copied_numbers(const Pointer& numbers, const Window& window, int j);

class Elements {
 public:
  Elements(const Form& form, const Addresses& at);

  /// Those that one value serves for all of the kernel, and those of a row that are known before a sweep over it: each
  /// as a number, and as a register of it.
  void compute_constants() { compute_numbers(Reach::kOnce, 0); }
  void compute_row(int sweep) { compute_numbers(Reach::kOfRow, sweep); }
  /// Those of a run, that `wanted` steps are made of.
  void compute_run(const std::vector<int>& wanted);
  /// Lanes across rows (Form::across): registers that serve all rows of the same columns, until forget_columns().
  void compute_columns(const std::vector<int>& wanted, const Window& window);
  void give_columns(int step, std::vector<Value> registers);
  void forget_columns() { given_.assign(given_.size(), false); }
  /// Registers of the elements that `wanted` steps have, and those that they are made of.
  void compute(const std::vector<int>& wanted, const Window& window);
  /// Register j of a step's value.
  const Value& value(int step, int j) const;
  void set_number(int step, const Value& number);
  const Value& number(int step) const { return numbers_[static_cast<std::size_t>(step)]; }

  /// A step's registers go to memory, where other sweeps find them.
  void keep(int step, const Pointer& row, const Window& window) const;
  void find_kept(int step, const Pointer& row) { kept_[static_cast<std::size_t>(step)] = row; }
  void find_none() { kept_.assign(kept_.size(), std::nullopt); }

  void store(const Layout& to, DType memory, int step, const Window& window, bool past_caches);
  void store_number(const Layout& to, DType memory, int step) const;
  /// Sums of parts of the rows: they begin as those of nothing, and the step's registers are added to them.
  void clear(const Layout& sums, DType memory, const Window& window);
  void add_to(const Layout& sums, DType memory, int step, const Window& window);

 private:
  const Step& step(int s) const { return form_.kernel.step(s); }
  void compute_numbers(Reach reach, int sweep);
  void compute_number(int s);
  std::vector<bool> needed_for(const std::vector<int>& wanted) const;
  bool is_rounded_by_store(int s) const;
  void find_shown();
  bool has_quick_quotient(int s) const;
  Value number_of(int s) const;
  std::vector<Value> registers_of(int s, const Window& window);
  Value constant_of(const Step& s) const;
  /// Elements as they lie in memory, so many bytes from where the operand says.
  std::vector<Value> load(const Layout& from, DType memory, const Window& window, const Number& offset);
  std::vector<Value> taken(int s, const Window& window);  ///< this and the next: takes.cpp
  void find_offsets(int index, const Value& number);
  void put(const Layout& to, DType memory, const std::vector<std::string>& registers, const Window& window,
           bool past_caches);
  std::vector<Value> load_kept(DType type, const Pointer& row, const Window& window) const;
  std::vector<Value> count_off(const Layout& iota, DType type, const Window& window);
  Value made(int s, const std::vector<Value>& arguments) const;
  const Pointer& copy();

  const Form& form_;
  const Addresses& at_;
  std::vector<bool> rounded_by_store_;
  std::vector<DType> shown_;  ///< by step: the half type, if it is one, that alone its value shows in
  std::vector<std::vector<Value>> values_, raw_;  ///< raw_: what was loaded, as it lies in memory
  std::vector<std::optional<Number>> offsets_;  ///< by step: what a table is read from, which a number of the row says
  std::vector<Value> numbers_;
  std::vector<std::optional<Pointer>> kept_;
  std::vector<bool> given_;                       ///< by step: its registers serve all rows of the columns
  std::vector<std::optional<Divisor>> divisors_;  ///< by step: a number by which elements are divided
  std::optional<Pointer> copy_;
};

}  // namespace kfusion::cpu::ir
