// Kernels of more operations than one function should have, cut into links: maps of some of them each, which leave
// values in scratch memory for links behind them. The last link is what is left of the kernel.
#pragma once
#include <vector>

#include "cpu/codegen/chains/excerpt.hpp"

namespace kfusion::cpu::ir {

struct Chain {
  std::vector<Link> links;
  /// Each holds a value: of some elements of a row of a map, or of all elements of another row.
  int buffers = 0;
  /// Kernels that take no whole rows: buffers of all elements, from `buffers` on, which the last link reads when the
  /// others have gone through the whole domain.
  int whole_buffers = 0;
  bool is_whole = false;
};

/// Bytes of an element of a buffer.
inline constexpr std::int64_t kBufferItem = 8;

bool is_long_chain(const Kernel& k);

/// Whether the last link would be too long, since most steps are behind reductions or are of rows: whole_links.hpp.
bool is_long_behind_reductions(const Kernel& k);
Chain chain_of(const Kernel& k);

}  // namespace kfusion::cpu::ir
