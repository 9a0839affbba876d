// The mean of a row and its squared distances from it in one sweep: sums of x - p and of (x - p)^2, where each lane's p
// is the mean of its first elements (T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample
// variance", 1983, on shifted data).
#pragma once
#include "cpu/codegen/elements/elements.hpp"

namespace kfusion::cpu::ir {

/// With n elements in each lane and p the mean of k of them, n (mean - p)^2 is at most n / k times the squared
/// distances from the mean: that is how much rounding errors grow.
class RowMoments {
 public:
  RowMoments(const Form& form, const Pair& pair) : form_(form), pair_(pair) {}

  int argument() const { return step(pair_.first).arguments[0]; }
  int mean() const { return pair_.first; }
  int squares() const { return pair_.second; }

  /// Pivots, from the first elements.
  std::string pivot_of(const Elements& first, const Window& window) const;
  /// Sums of nothing, behind those in `carry`.
  void begin(Carry& carry, const std::string& pivot);
  /// The sums of the next elements, as floats; then a chunk's, as doubles.
  void begin_chunk(Carry& carry);
  void take(Carry& carry, const Elements& elements, const Window& window) const;
  void end_chunk(Carry& carry) const;

  /// Both values of so many runs of `length` elements.
  struct Moments {
    std::string mean, squares;  ///< doubles: the mean, and the sum of squares about it as a float
    std::string about_pivots;   ///< the sum of squares that floats have added up
  };
  Moments finish(const Carry& carry, const Number& runs, const Number& length) const;
  /// Where they are not finite, or a zero whose sign the pivot hides, or so much smaller than the sum about pivots that
  /// its errors show (first elements that lie apart), two sweeps are to be taken.
  static Condition are_lost(const Moments& m);
  /// The values of the steps.
  Value mean_of(const std::string& mean) const;
  Value squares_of(const std::string& sum, const Number& count) const;

 private:
  const Step& step(int s) const { return form_.kernel.step(s); }

  const Form& form_;
  Pair pair_;
  std::size_t first_ = 0, chunk_ = 0;
  std::string pivot_;
};

/// An integer as a double.
std::string as_double(const Number& n);
/// Sum of the lanes of a vector of doubles.
std::string sum_of_lanes(const std::string& vector);

}  // namespace kfusion::cpu::ir
