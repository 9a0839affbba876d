// Reductions of a row: accumulators that a loop over its elements carries, and what becomes of them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cpu/codegen/elements/elements.hpp"

namespace kfusion::cpu::ir {

/// What accumulators of a reduction are and how they take elements.
class Reduction {
 public:
  Reduction(const Form& form, int step);

  int step() const { return step_; }
  int argument() const { return argument_; }
  const std::string& lane() const { return lane_; }
  const std::string& identity() const { return identity_; }

  // In vectors or, while there is one lane, of a number:
  std::string combine(const std::string& a, const std::string& b) const;
  /// Values of the step, from so many elements each.
  Value finished(std::string accumulator, const Number& count) const;

 protected:
  std::string type() const { return vector_of(lane_); }
  std::string lift(const Value& x) const;
  std::string extreme(const std::string& a, const std::string& b) const;

  const Form& form_;
  int step_, argument_;
  Op op_;
  DType from_;            ///< that elements are computed in
  DType held_;            ///< of accumulators
  std::string lane_;      ///< of an accumulator
  std::string identity_;  ///< of a lane
};

/// A reduction of one accumulator a register. The order in which elements are combined depends on the row's length and
/// the width of registers alone.
class RowReduction : public Reduction {
 public:
  RowReduction(const Form& form, int step);

  /// Accumulators that have taken nothing, behind those in `carry`.
  void begin(Carry& carry);
  /// Whether floats add up a chunk's elements (exponentials of what is not positive, whose sum neither cancels nor
  /// overflows), or it is known in which chunk an extreme was met first.
  bool by_chunks() const { return by_chunks_; }
  bool is_searched_for() const { return is_searched_for_; }
  void begin_chunk(Carry& carry);
  void end_chunk(Carry& carry, const Number& chunk) const;
  void take(Carry& carry, const Elements& elements, const Window& window) const;
  /// One number of all accumulators.
  std::string accumulator(const Carry& carry) const;
  /// The row's value, of so many elements.
  Value finish(const Carry& carry, const Number& count) const;
  /// Where the chunk begins that had the extreme `number` first, or the first NaN.
  Number chunk_of(const Carry& carry, const Value& number) const;
  /// What the first lane of `x` alone gives.
  std::string accumulator_of(const Value& x) const;

 private:
  std::string fold(std::vector<std::string> all,
                   const std::function<std::string(std::string, std::string)>& both) const;

  /// Accumulators of a chunk.
  std::string chunk_lane() const { return is_searched_for_ ? lane_ : "float"; }
  std::string combine_in_chunk(const std::string& a, const std::string& b) const;

  bool by_chunks_ = false, is_searched_for_ = false;
  std::size_t first_ = 0, chunk_ = 0;
};

}  // namespace kfusion::cpu::ir
