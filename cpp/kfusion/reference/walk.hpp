// The elements of several arrays of one shape, visited in C order as few long runs.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion::reference {

/// A result and up to three arguments, one address and one stride (in bytes) each.
inline constexpr int kMaxOperands = 4;
using Pointers = std::array<std::byte*, kMaxOperands>;
using Strides = std::array<std::int64_t, kMaxOperands>;

/// What computes a run: the result first, then the arguments.
using Loop = void (*)(std::int64_t n, const Pointers& p, const Strides& strides);

class Walk {
 public:
  /// The strides of each operand, in bytes.
  Walk(const Extents& shape, const std::vector<Extents>& strides);

  /// run(n, pointers, strides) for each run, from the operands' first elements on.
  template <class Run>
  void operator()(const Pointers& first, Run run) const {
    if (empty_) return;
    Strides offset = {};
    std::int64_t index[kMaxDims] = {};
    const Axis& inner = axes_.back();
    do {
      Pointers p;
      for (int k = 0; k < kMaxOperands; ++k) p[k] = first[k] + offset[k];
      run(inner.extent, p, inner.strides);
    } while (advance(index, offset));
  }

 private:
  struct Axis {
    std::int64_t extent;
    Strides strides;
  };

  /// Goes to the next run; false after the last.
  bool advance(std::int64_t* index, Strides& offset) const;

  std::vector<Axis> axes_;  ///< merged where neighbours are one, the innermost last; never none
  bool empty_ = false;
};

}  // namespace kfusion::reference
