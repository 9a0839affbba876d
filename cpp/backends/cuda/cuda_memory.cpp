// The memory of CUDA devices.
#include "host/cuda.hpp"
#include "runtime/memory.hpp"

namespace kfusion {

constinit const Memory cuda_memory = {
    .has_streams = true,
    .vector_bytes = 16,  // the most that one thread of a GPU loads at once
    .require = &cuda::require,
    .allocate = &cuda::allocate,
    .deallocate = [](void* p, std::size_t, int index, Stream stream) { cuda::deallocate(p, index, stream); },
    .deallocate_array = &cuda::deallocate_array,
    .give_back = &cuda::empty_cache,
    .copy = &cuda::copy,
    .fill = &cuda::clear,
    .wait = &cuda::wait,
    .synchronize = &cuda::synchronize,
};

}  // namespace kfusion
