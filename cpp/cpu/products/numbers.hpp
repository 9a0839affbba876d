// Positions that an epilogue makes where it uses them, as arrays: blocks read them at addresses that move.
#pragma once
#include <vector>

#include "kfusion/lower/contraction.hpp"

namespace kfusion::cpu {

/// Makes the epilogue's iotas its last loads. Returns their arrays, in order.
std::vector<std::vector<std::byte>> numbers_of(Contraction& c);

}  // namespace kfusion::cpu
