// What is loaded for a kernel: from the cache on disk, or compiled and left there.
#pragma once
#include <string>

#include "compiler/nvrtc.hpp"

namespace kfusion::compiler {

/// The image of `program` for `architecture`, as compile() makes it. Throws what compile() and
/// cache::KernelCache::from_environment() throw.
std::string image(const Program& program, Architecture architecture);

}  // namespace kfusion::compiler
