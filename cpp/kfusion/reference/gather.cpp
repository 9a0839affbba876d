#include "kfusion/reference/gather.hpp"

#include "kfusion/error.hpp"
#include "kfusion/positions.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/loops.hpp"

namespace kfusion::reference {
namespace {

/// Indices in C order, each within the axis.
std::vector<std::int64_t> read_indices(const Value& indices, const std::string& function, int axis,
                                       const Positions& positions) {
  const Value copy = converted(indices, DType::kInt64);  // repeated elements are not copied
  const Value dense = reshaped(copy, {product(indices.access.shape)});
  const std::int64_t step = dense.access.strides[0];
  std::vector<std::int64_t> values(static_cast<std::size_t>(dense.access.shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto given = load<std::int64_t>(dense.first() + static_cast<std::int64_t>(i) * step);
    if (!positions.has(given)) throw IndexError(out_of_bounds(function, given, axis, positions));
    values[i] = positions.position(given);
  }
  return values;
}

}  // namespace

Value take(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape) {
  const auto along = at(take.axis), count = indices.access.shape.size();
  const auto picks = read_indices(indices, "take", take.axis, {x.access.shape[along], take.nonnegative});
  Value result = make_value(x.dtype, shape);
  result.exact = x.exact;

  // What one index picks, in x and in the result.
  Extents slab = x.access.shape, from = x.access.strides, to = result.access.strides;
  const std::int64_t from_step = from[along];
  slab.erase(slab.begin() + take.axis);
  from.erase(from.begin() + take.axis);
  to.erase(to.begin() + take.axis, to.begin() + take.axis + static_cast<std::ptrdiff_t>(count));
  std::int64_t to_step = static_cast<std::int64_t>(item_bytes(x.dtype));
  for (std::size_t d = along; d < slab.size(); ++d) to_step *= slab[d];

  const Walk walk(slab, {to, from});
  const Loop copy = cast_loop(x.dtype, x.dtype);
  std::byte* p = result.first();
  for (const std::int64_t pick : picks) {
    walk({p, x.first() + pick * from_step}, copy);
    p += to_step;
  }
  return result;
}

Value take_along_axis(const Value& x, const Value& indices, const TakeAttributes& take, const Extents& shape) {
  const auto along = at(take.axis);
  const auto picks = read_indices(indices, "take_along_axis", take.axis, {x.access.shape[along], take.nonnegative});
  Value result = make_value(x.dtype, shape);
  result.exact = x.exact;
  const Loop copy = cast_loop(x.dtype, x.dtype);
  const auto item = static_cast<std::int64_t>(item_bytes(x.dtype));
  for (std::size_t i = 0; i < picks.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), offset = picks[i] * x.access.strides[along];
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d])
      if (d != along) offset += rest % shape[d] * x.access.strides[d];
    copy(1, {result.first() + static_cast<std::int64_t>(i) * item, x.first() + offset}, {item, item});
  }
  return result;
}

}  // namespace kfusion::reference
