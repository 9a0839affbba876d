// For tests: memory that a run is given holds a pattern first, so that what no kernel writes is seen; and so does the
// working memory of kernels of the CPU.
#pragma once
#include <cstddef>

#include "runtime/memory.hpp"

namespace kfusion {

bool poisons_memory() noexcept;
void set_poisons_memory(bool on) noexcept;  ///< off at the start; for the whole process

/// Where memory is poisoned: fills `bytes` bytes at `place`, in the order of `stream`.
void poison(std::byte* p, std::size_t bytes, Place place, Stream stream);

}  // namespace kfusion
