// Sums of columns that a kernel of rows stores (Store::parts): loads of the sums so far, additions and ordinary stores.
#pragma once
#include <vector>

#include "cpu/fused/fused.hpp"

namespace kfusion::cpu {

/// What a kernel with sums is to loops that know none.
struct Sums {
  std::vector<std::size_t> stores;  ///< that are sums; load i of them is load `first_load` + i, at the store's address
  std::size_t first_load = 0;
  std::int64_t parts = 0;

  std::int64_t first_row(std::int64_t part, std::int64_t rows) const { return part * rows / parts; }
};

/// Gives `k`, which has sums, loads, additions and stores in their place. Rows of a part are to go by one after the
/// other, its sums being 0 before.
Sums replace_sums(Kernel& k);

}  // namespace kfusion::cpu
