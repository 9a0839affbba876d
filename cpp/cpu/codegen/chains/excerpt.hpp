// Some steps of a kernel as a kernel of its own, which finds in scratch memory what others have left there.
#pragma once
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu::ir {

struct Link {
  Kernel kernel;
  std::vector<int> loads, stores;  ///< arrays of the whole kernel (loads, then tables), or ~buffer
};

/// What is loaded or made of nothing: each kernel takes it again.
bool is_source(const Step& s);

/// Axes of all elements, in an order in which arrays tend to lie.
Extents all_axes(const Kernel& k, const Extents& kept, const Extents& reduced);

class Excerpt {
 public:
  enum class Over {
    kSame,      ///< it reduces as the whole kernel does
    kElements,  ///< a map of all elements
    kRows       ///< a map of the rows' values
  };
  Excerpt(const Kernel& whole, Over over);

  /// Takes a step, whose arguments it has.
  void compute(int step);
  bool has(int step) const { return moved_[at(step)] >= 0; }
  void find(int step, int buffer, Operand at);
  void leave(int step, int buffer, Operand at);
  /// Store number `t` of the whole kernel.
  void store(int t);
  void take_pairs();
  Link finish();

  const Kernel& kernel() const { return link_.kernel; }

 private:
  Operand seen(Operand o) const;
  int add_load(Operand o, int array);

  const Kernel& whole_;
  const Over over_;
  Link link_;
  std::vector<int> moved_;  ///< by step of the whole kernel: which step it is here, or -1
  std::vector<int> tables_;
};

}  // namespace kfusion::cpu::ir
