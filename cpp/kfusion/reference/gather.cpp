#include "kfusion/reference/gather.hpp"

#include "kfusion/error.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/loops.hpp"

namespace kfusion::reference {
namespace {

/// Indices in C order, each within [0, extent).
std::vector<std::int64_t> read_indices(const Value& indices, int axis, std::int64_t extent) {
  const Value dense = reshaped(converted(indices, DType::kInt64), {product(indices.access.shape)});
  const std::int64_t step = dense.access.strides[0];
  std::vector<std::int64_t> values(static_cast<std::size_t>(dense.access.shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto given = load<std::int64_t>(dense.first() + static_cast<std::int64_t>(i) * step);
    if (given < -extent || given >= extent)
      throw ValueError("take: index " + std::to_string(given) + " is out of bounds for axis " + std::to_string(axis) +
                       " with size " + std::to_string(extent));
    values[i] = given < 0 ? given + extent : given;
  }
  return values;
}

}  // namespace

Value take(const Value& x, const Value& indices, int axis, const Extents& shape) {
  const auto at = static_cast<std::size_t>(axis), count = indices.access.shape.size();
  const auto picks = read_indices(indices, axis, x.access.shape[at]);
  Value result = make_value(x.dtype, shape);
  result.exact = x.exact;

  // What one index picks, in x and in the result.
  Extents slab = x.access.shape, from = x.access.strides, to = result.access.strides;
  const std::int64_t from_step = from[at];
  slab.erase(slab.begin() + axis);
  from.erase(from.begin() + axis);
  to.erase(to.begin() + axis, to.begin() + axis + static_cast<std::ptrdiff_t>(count));
  std::int64_t to_step = static_cast<std::int64_t>(item_bytes(x.dtype));
  for (std::size_t d = at; d < slab.size(); ++d) to_step *= slab[d];

  const Walk walk(slab, {to, from});
  const Loop copy = cast_loop(x.dtype, x.dtype);
  std::byte* p = result.first();
  for (const std::int64_t pick : picks) {
    walk({p, x.first() + pick * from_step}, copy);
    p += to_step;
  }
  return result;
}

}  // namespace kfusion::reference
