// The generated struct of attention's scores: F of device/attention.cuh.
#pragma once
#include <string>
#include <vector>

#include "codegen/contractions/epilogue_printer.hpp"
#include "kfusion/lower/visible.hpp"

namespace kfusion::codegen {

class ScorePrinter : private EpiloguePrinter {
 public:
  /// Declares what it reads in `parameters`, but for the load `operand`, which comes by boxes (-1: none). `aligned`:
  /// arrays begin at multiples of 16 bytes.
  ScorePrinter(const Contraction& scores, int operand, bool aligned, ParameterList& parameters);

  std::string print();
  /// Whether a score is the product, but for factors and for masks of positions.
  bool is_plain() const { return is_product(visible_.seen.base) && visible_.seen.masks.empty(); }
  const std::vector<KeyBound>& bounds() const { return visible_.bounds; }

 private:
  std::vector<int> ends(const Peeled& p) const;
  bool is_used_beside_positions(int i) const;
  bool comes_in_pairs(int i) const;
  std::string positioned(int i) const;
  std::string position(int i) const;
  std::string element(int i) const;
  std::string tanh(const Step& s) const;
  void print_value(int i, const std::string& text);
  void print_row();
  void print_map();
  void print_loop(const Peeled& p, bool edge);
  void print_factor();
  void print_keys();

  const bool aligned_;
  const int score_;
  const PositionSteps positions_;
  const Visible visible_;
  std::vector<int> row_members_;
};

}  // namespace kfusion::codegen
