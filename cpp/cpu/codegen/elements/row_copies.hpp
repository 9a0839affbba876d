// Maps of rows so short that several of them fill a register: what does not lie in one go along both axes is copied, a
// block of rows at a time.
#pragma once
#include <vector>

#include "cpu/codegen/elements/addresses.hpp"

namespace kfusion::cpu::ir {

class RowCopies {
 public:
  RowCopies(const Form& form, Addresses& at);

  /// Before all rows, where no address has moved.
  void begin();
  /// Begins the row of blocks that addresses are at.
  void begin_row();
  /// Copies what is read of short rows [first, first + rows); addresses are those of copies then.
  void load(const Number& first, const Number& rows);
  /// What is in copies, to where it belongs.
  void store(const Number& first, const Number& rows) const;

 private:
  struct Copy {
    const Layout* layout;
    Pointer memory, array;  ///< of an iota its number
  };
  Number stride(const Layout& p, int axis) const { return at_.integer(form_.stride(p, axis)); }
  Number across(const Layout& p) const { return stride(p, form_.axes - 2); }
  void fill(const Copy& s, const Number& first, const Number& rows) const;
  void count_off(const Copy& s, const Number& first, const Number& rows) const;
  template <class Row>
  void for_rows(const Pointer& a, const Number& a_stride, const Pointer& b, const Number& b_stride, const Number& rows,
                const Row& row) const;

  const Form& form_;
  Addresses& at_;
  Number cols_ = 0, block_ = 0;
  std::vector<Copy> copies_;
  std::vector<std::string> masks_;
};

}  // namespace kfusion::cpu::ir
