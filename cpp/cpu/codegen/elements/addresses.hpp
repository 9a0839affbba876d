// Where the row that a kernel is at begins in each of its arrays, and the run of that row.
#pragma once
#include <string>
#include <vector>

#include "cpu/codegen/form/form.hpp"
#include "cpu/codegen/instructions/flow.hpp"

namespace kfusion::cpu::ir {

/// Goes from row to row without a division, and in a row from run to run: indices along axes and addresses wait in the
/// function's frame.
class Addresses {
 public:
  explicit Addresses(const Form& form);

  void go_to(const Number& row) { go_to(rows_, base_, row); }
  void next_row() { next(rows_, rows_.end - 1); }
  /// Names what row() and first_number() give, until the next row.
  void begin_row();
  /// Do so for the runs of the row that is begun.
  void go_to_run(const Number& run) { go_to(runs_, first_, run); }
  void next_run() { next(runs_, runs_.end - 1); }
  void begin_run() { begin(runs_, row_); }
  Pointer row(const Layout& p) const { return {row_[number(p)]}; }
  Number first_number(const Layout& iota) const { return Number(row_[number(iota)]); }
  /// Where a copy of it lies (Layout::copied): of a table, its numbers.
  void lies_at(const Layout& p, const Pointer& copy) { (p.is_table ? numbers_ : row_)[number(p)] = copy.name; }
  Pointer numbers(const Layout& table) const { return {numbers_[number(table)]}; }
  Pointer base(const Layout& p) const { return {base_[number(p)]}; }
  /// Another row of one operand, and back to where all were.
  using Here = std::vector<std::string>;
  const Here& here() const { return row_; }
  void return_to(const Here& rows) { row_ = rows; }
  void set_row(const Layout& p, const std::string& at) { row_[number(p)] = at; }

  const Pointer& field(Field f) const { return fields_[static_cast<std::size_t>(f)]; }
  Number integer(int index) const { return number_at(field(Field::kIntegers), index); }
  /// Along the run.
  Number stride(const Layout& p) const;
  /// Runs of a row.
  Number runs() const;

 private:
  /// Axes that are counted together, and the operands that move along them.
  struct Nest {
    int first = 0, end = 0;
    std::vector<const Layout*> moved = {};
    Pointer at = {}, indices = {};
  };
  static std::size_t number(const Layout& p) { return static_cast<std::size_t>(p.number); }
  Nest nest(int first, int end, bool Layout::* moves) const;
  void go_to(const Nest& n, const std::vector<std::string>& from, const Number& index);
  void begin(const Nest& n, std::vector<std::string>& names) const;
  void next(const Nest& n, int axis);

  const Form& form_;
  std::vector<const Layout*> places_;
  std::vector<Pointer> fields_;
  std::vector<std::string> base_, first_, row_, numbers_;  ///< by operand: an address, of an iota its number
  Nest rows_, runs_;
};

}  // namespace kfusion::cpu::ir
