// Elements chosen by data.
#pragma once
#include "kfusion/reference/value.hpp"

namespace kfusion::reference {

/// Elements of `x` at `indices` along `axis`; negative ones count from the end. Throws ValueError where one is out of
/// range.
Value take(const Value& x, const Value& indices, int axis, const Extents& shape);

}  // namespace kfusion::reference
