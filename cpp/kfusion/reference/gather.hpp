// Elements chosen by data.
#pragma once
#include "kfusion/reference/value.hpp"

namespace kfusion::reference {

/// Elements of `x` at `indices` along an axis. Throws IndexError where one is out of range.
Value take(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape);

/// Elements of `x`, where each element of `indices`, which has the other extents of x, picks one along the axis.
Value take_along_axis(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape);

}  // namespace kfusion::reference
