// Kernels with more operations behind their reductions than one function should have, or more of rows, as kernels that
// go over everything one after the other: the values of rows that elements need, elements and the reductions of them,
// the values of rows that need these, and so on. What one of them needs of another lies in memory as a whole.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/codegen/chains/excerpt.hpp"

namespace kfusion::cpu::ir {

struct WholeLinks {
  std::vector<Link> links;
  std::vector<std::int64_t> places;  ///< by buffer: where in memory it begins
  std::int64_t bytes = 0;            ///< of all buffers
};

WholeLinks whole_links_of(const Kernel& k);

}  // namespace kfusion::cpu::ir
