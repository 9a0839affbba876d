// The expressions of ops.def as text.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kfusion/ops/op.hpp"

namespace kfusion::codegen {

/// What stands for a name of an expression: x, y, z, a, b, n, T, A.
using Meaning = std::pair<std::string_view, std::string>;

/// `expression` with its names replaced.
std::string with(std::string_view expression, std::span<const Meaning> meanings);

}  // namespace kfusion::codegen
