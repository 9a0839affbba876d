// Constant nodes: scalars known when traced.
#pragma once
#include <limits>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

inline bool is_constant(const Node& n) { return std::holds_alternative<ConstantAttributes>(n.attributes); }

/// A Python scalar.
inline bool is_weak(const Node& n) { return is_constant(n) && std::get<ConstantAttributes>(n.attributes).weak; }

inline bool is_minus_infinity(const Node& n) {
  return is_constant(n) && std::get<ConstantAttributes>(n.attributes).value == -std::numeric_limits<double>::infinity();
}

Node constant_node(DType dtype, ConstantAttributes attributes);

/// Converts a constant to another dtype, no longer weak: floats are rounded, or cut towards 0 to be integers. Throws
/// std::overflow_error where an integer dtype does not hold it. `wide`: half types keep float32 precision.
Node converted_constant(const Node& n, DType dtype, bool wide = false);

/// Whether a finite constant is infinite in a float dtype; never for a float argument, whose value may change.
bool overflows(const Node& n, DType dtype);

/// The float dtype that the value of a constant of `dtype` is rounded to.
inline DType precision(DType dtype, bool wide) { return wide && is_half(dtype) ? DType::kFloat32 : dtype; }

/// Whether the value stands in the field of its dtype and the dtype can hold it.
bool is_representable(const ConstantAttributes& c, DType dtype);

}  // namespace kfusion
