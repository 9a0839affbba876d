// How many threads of which blocks share a kernel's elements.
#pragma once
#include <vector>

#include "codegen/choice.hpp"

namespace kfusion::codegen {

/// What is a number at run time: the launch and the members of device::Geometry. `partial_bytes`: sizeof a partial
/// result.
struct Division {
  Launch launch;
  std::vector<std::int64_t> geometry;
};
Division divide(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                std::size_t partial_bytes);

}  // namespace kfusion::codegen
