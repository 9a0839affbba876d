// Sums of products: matrix product, convolution. Floats are accumulated in double, in the order of the terms.
#pragma once
#include "kfusion/reference/value.hpp"

namespace kfusion::reference {

/// `a` and `b` have at least two axes; leading ones are broadcast to those of `shape`, the result's.
Value matmul(const Value& a, const Value& b, const Extents& shape);

Value conv2d(const Value& x, const Value& w, const Conv2dAttributes& attributes, const Extents& shape);

}  // namespace kfusion::reference
