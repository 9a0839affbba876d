// Where NVIDIA's libraries are that are loaded by name when they are first needed.
#pragma once
#include <string>

namespace kfusion::compiler {

/// lib`stem`.so.<major> of one of the majors that are known: the one that the process has loaded, those of NVIDIA's
/// wheels (of which `wheel` is the folder before CUDA 13), of CUDA_HOME, CUDA_PATH, Python's prefix and
/// /usr/local/cuda, what the loader finds. nullptr where there is none.
void* nvidia_library(const std::string& stem, const std::string& wheel);

}  // namespace kfusion::compiler
