// The limits that Linux control groups (cgroups) set to this process.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace kfusion::cpu {

/// The least limit on memory, in bytes, of the process's own control group and of all above it that it can see, of both
/// versions; none where there is none. `root` goes before all paths that are read: tests have a tree of their own.
std::optional<std::size_t> control_group_memory(const std::string& root = "");

}  // namespace kfusion::cpu
