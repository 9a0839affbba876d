// Elements chosen by data.
#pragma once
#include "kfusion/reference/value.hpp"

namespace kfusion::reference {

/// Elements of `x` at `indices` along an axis. Throws IndexError where one is out of range.
Value take(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape);

/// The same, where each element of `indices`, which has the extents of x besides, picks one element.
Value take_along_axis(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape);

}  // namespace kfusion::reference
