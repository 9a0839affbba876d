// The expressions of ops.def as text, and names as identifiers.
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

/// A name as the end of an identifier: what is no letter, digit or underscore becomes an underscore.
std::string identifier(std::string prefix, std::string_view name);

}  // namespace kfusion::codegen
