// Constants and iotas in memory: kernels make them as they go, libraries' functions read them.
#pragma once
#include "cpu/buffer.hpp"
#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The elements that accesses of a free node number (one for a constant, one for each index of an iota), kept at a
/// place. Throws ValueError for a float argument of the function, whose value comes with each call.
class SourceValue {
 public:
  SourceValue(const Node& n, Place place);

  std::byte* data() const { return device_ ? device_ : host_.data(); }

 private:
  cpu::Buffer host_;
  /// Never given back: other streams, and graphs that were captured, may read it after the executable is gone.
  std::byte* device_ = nullptr;
};

}  // namespace kfusion
