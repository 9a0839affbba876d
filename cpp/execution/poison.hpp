// For tests: memory that a run is given holds a pattern first, so that what no kernel writes is seen.
#pragma once
#include <cstddef>

#include "host/cuda.hpp"
#include "kfusion/view.hpp"

namespace kfusion {

bool poisons_memory() noexcept;
void set_poisons_memory(bool on) noexcept;  ///< off at the start; for the whole process

/// Where memory is poisoned: fills `bytes` bytes at `place`, on CUDA ordered on `stream`.
void poison(std::byte* p, std::size_t bytes, Place place, cuda::Stream stream);

}  // namespace kfusion
