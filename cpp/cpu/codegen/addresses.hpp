// Where the row that a kernel is at begins in each of its arrays.
#pragma once
#include <string>
#include <vector>

#include "cpu/codegen/flow.hpp"
#include "cpu/codegen/form.hpp"

namespace kfusion::cpu::ir {

/// Goes from row to row without a division: indices along the outer axes and addresses wait in the function's frame.
class Addresses {
 public:
  explicit Addresses(const Form& form);

  void go_to(const Number& row);
  void next_row();
  /// Names what the following two give, until the next row.
  void begin_row();
  Pointer row(const Place& p) const { return {row_[number(p)]}; }
  Number first_number(const Place& iota) const { return Number(row_[number(iota)]); }

  const Pointer& field(Field f) const { return fields_[static_cast<std::size_t>(f)]; }
  Number integer(int index) const { return number_at(field(Field::kIntegers), index); }
  /// Along the row.
  Number step(const Place& p) const;

 private:
  static std::size_t number(const Place& p) { return static_cast<std::size_t>(p.number); }
  std::vector<const Place*> moved() const;
  void next(int axis);

  const Form& form_;
  std::vector<const Place*> places_;
  std::vector<Pointer> fields_;
  std::vector<std::string> base_, row_;  ///< by operand: an address, of an iota its number
  Pointer rows_, indices_;
};

}  // namespace kfusion::cpu::ir
