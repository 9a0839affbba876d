// Short rows whose lanes are rows: elements that are dense along each row change places, so that each register has one
// element of as many rows as it has lanes. They wait in scratch memory, element after element.
#pragma once
#include "cpu/codegen/elements/addresses.hpp"
#include "cpu/codegen/elements/walk.hpp"

namespace kfusion::cpu::ir {

class Transposed {
 public:
  /// `first`: element 0 of the rows in scratch memory; `count`: elements of a row.
  Transposed(const Form& form, const Addresses& at, const Layout& layout, const Pointer& scratch, const Number& count)
      : form_(form), at_(at), layout_(layout), scratch_(scratch), count_(count) {}

  const Layout& layout() const { return layout_; }
  /// Bytes from element to element in scratch memory.
  std::int64_t row_bytes() const { return std::int64_t{form_.lanes} * form_.registers * layout_.item; }
  /// Element 0 of what would be row 0, for a window whose first row is the first in scratch memory.
  Pointer row(const Window& window) const { return scratch_ + (Number(0) - window.first * layout_.item); }

  void bring(const Window& window) const;
  void take_back(const Window& window) const;

 private:
  void whole(const Pointer& rows, const Number& pitch, const Pointer& at, bool back) const;
  void dense_rows(const Pointer& rows, const Pointer& at, bool back) const;
  void block(const Pointer& rows, const Number& pitch, const Pointer& at, const Number& element, bool back) const;
  void one_by_one(const Pointer& rows, const Number& pitch, const Pointer& at, const Number& count, bool back) const;
  void move(const Window& window, bool back) const;

  const Form& form_;
  const Addresses& at_;
  const Layout& layout_;
  Pointer scratch_;
  Number count_;
};

}  // namespace kfusion::cpu::ir
