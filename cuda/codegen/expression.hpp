// The expressions of ops.def as text, and names as identifiers.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::codegen {

/// What stands for a name of an expression: x, y, z, a, b, n, T, A.
using Meaning = std::pair<std::string_view, std::string>;

/// `expression` with its names replaced.
std::string with(std::string_view expression, std::span<const Meaning> meanings);

/// A map or cast, of arguments as `value` names steps.
std::string formula(const Step& s, const std::function<std::string(int)>& value);

/// A reduction's names, as ops.def calls them: A; the accumulators `a` and `b` as one, or `a` and the element `x`.
std::string accumulator(const Step& s);
std::string combined(const Step& s, const std::string& a, const std::string& b);
std::string with_element(const Step& s, const std::string& a, const std::string& x);
/// What nothing is reduced to; where that is an error, what loses against any element.
std::string identity(const Step& s);
std::string finished(const Step& s, const std::string& a, const std::string& n);

/// A name as the end of an identifier: what is no letter, digit or underscore becomes an underscore.
std::string identifier(std::string prefix, std::string_view name);

}  // namespace kfusion::codegen
