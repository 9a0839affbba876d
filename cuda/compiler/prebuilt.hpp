// Kernels that were compiled when the package was built (kfusion/_prebuilt.py): a file per architecture, beside the
// module.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "compiler/nvrtc.hpp"

namespace kfusion::compiler {

/// What a prebuilt kernel is known by: a digest of all that it depends on but its architecture. No NVRTC plays a part.
std::string prebuilt_key(const Program& program);

/// The keys of the kernels that there are for an architecture, in the order in which they were built.
std::vector<std::string> prebuilt_keys(Architecture architecture);

struct Prebuilt {
  std::string image, entry;  ///< what a driver loads, and what the kernel is called in it
};
/// The prebuilt kernel for `program`, where there is one. Thread-safe; a file that cannot be read has none.
std::optional<Prebuilt> prebuilt(const Program& program, Architecture architecture);

}  // namespace kfusion::compiler
