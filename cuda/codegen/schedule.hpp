// When each value of a kernel is known: in which sweep over the elements, or after which.
#pragma once
#include <vector>

#include "codegen/arrangement.hpp"

namespace kfusion::codegen {

struct Schedule {
  std::vector<bool> per_row;  ///< by step: one value a row; constants too
  std::vector<int> time;  ///< by step: the sweep in which an element's is known, or after which a row's is; -1: before
  std::vector<int> pair;  ///< by step: of Kernel::pairs, whose two reductions are taken in one sweep, else -1
  std::vector<int> store_time;  ///< by store: the sweep that stores elements; -1 for what is stored once per row
  int sweeps = 1;
};

Schedule schedule(const Kernel& k, const Arrangement& a);

/// The element steps that `sweep` computes, in order.
std::vector<int> steps_of(const Kernel& k, const Schedule& s, int sweep);

}  // namespace kfusion::codegen
