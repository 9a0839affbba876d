// What a caller's array library computes for a plan.
#pragma once
#include <span>

#include "kfusion/graph/graph.hpp"
#include "runtime/memory.hpp"

namespace kfusion {

/// The functions of the library that a call's arrays are of.
class LibraryFunctions {
 public:
  /// Writes what `n` computes of `arguments` to `result`, all at one place, in the order of `stream`.
  virtual void compute(const Node& n, std::span<const View> arguments, const View& result, Stream stream) = 0;

 protected:
  ~LibraryFunctions() = default;
};

}  // namespace kfusion
