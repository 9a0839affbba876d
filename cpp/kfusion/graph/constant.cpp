#include "kfusion/graph/constant.hpp"

#include <cmath>
#include <stdexcept>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

using std::to_string;

[[noreturn]] void refuse(const std::string& value, DType dtype) {
  throw std::overflow_error("constant: " + value + " out of bounds for " + name(dtype));
}

bool fits(std::int64_t value, DType integer) {
  return integer == DType::kInt64 || value == static_cast<std::int32_t>(value);
}

std::int64_t integer_value(const Node& n, DType dtype) {
  const auto& c = std::get<ConstantAttributes>(n.attributes);
  if (is_integer(n.dtype)) {
    if (!fits(c.integer, dtype)) refuse(to_string(c.integer), dtype);
    return c.integer;
  }
  const double whole = std::trunc(c.value), limit = dtype == DType::kInt32 ? 0x1p31 : 0x1p63;
  if (!(whole >= -limit && whole < limit)) refuse(to_string(c.value), dtype);
  return static_cast<std::int64_t>(whole);
}

}  // namespace

Node constant_node(DType dtype, ConstantAttributes attributes) {
  Node n;
  n.op = Op::constant;
  n.dtype = dtype;
  n.attributes = attributes;
  return n;
}

Node converted_constant(const Node& n, DType dtype, bool wide) {
  const auto& c = std::get<ConstantAttributes>(n.attributes);
  if (is_integer(dtype)) return constant_node(dtype, {0, integer_value(n, dtype), false, c.parameter});
  const double value = is_integer(n.dtype) ? static_cast<double>(c.integer) : c.value;
  wide = wide && is_half(dtype);
  const double held = dtype == DType::kBool ? value != 0 : rounded(value, precision(dtype, wide));
  return constant_node(dtype, {held, 0, false, c.parameter, wide});
}

bool overflows(const Node& n, DType dtype) {
  if (!is_constant(n) || !is_float(dtype)) return false;
  const auto& c = std::get<ConstantAttributes>(n.attributes);
  const double value = is_integer(n.dtype) ? static_cast<double>(c.integer) : c.value;
  return c.parameter < 0 && std::isfinite(value) && !std::isfinite(rounded(value, dtype));
}

bool is_representable(const ConstantAttributes& c, DType dtype) {
  if (is_integer(dtype)) return c.value == 0 && fits(c.integer, dtype);
  if (c.integer != 0) return false;
  if (dtype == DType::kBool) return c.value == 0 || c.value == 1;
  return std::isnan(c.value) || c.value == rounded(c.value, precision(dtype, c.wide));
}

}  // namespace kfusion
