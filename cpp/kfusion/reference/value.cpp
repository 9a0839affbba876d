#include "kfusion/reference/value.hpp"

#include <algorithm>
#include <new>

#include "kfusion/reference/loops.hpp"

namespace kfusion::reference {
namespace {

std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
  return product;
}

}  // namespace

void copy_elements(const Value& from, const Value& to) {
  const Walk walk(to.access.shape, {to.access.strides, from.access.strides});
  walk({to.first(), from.first()}, cast_loop(from.dtype, to.dtype));
}

Value make_value(DType dtype, const Extents& shape) {
  Value v{dtype, nullptr, identity_access(0, shape), nullptr, false};
  const auto item = static_cast<std::int64_t>(item_bytes(dtype));
  std::int64_t bytes = item;
  for (const std::int64_t extent : shape) bytes = checked_product(bytes, extent);
  for (std::int64_t& stride : v.access.strides) stride *= item;
  v.memory = std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  v.data = v.memory.get();
  return v;
}

Value borrowed(const View& v) {
  static std::byte none;  // an empty array may have no memory, and null takes no offset
  Value r{v.dtype, v.data ? v.data : &none, {}, nullptr, true};
  r.access.shape.assign(v.shape, v.shape + v.ndim);
  r.access.strides.assign(v.strides, v.strides + v.ndim);
  return r;
}

Value converted(const Value& v, DType dtype) {
  Extents distinct = v.access.shape;
  for (std::size_t d = 0; d < distinct.size(); ++d)
    if (v.access.strides[d] == 0) distinct[d] = std::min<std::int64_t>(distinct[d], 1);
  Value r = make_value(dtype, distinct);
  Value once = v;
  once.access.shape = distinct;
  copy_elements(once, r);
  for (std::size_t d = 0; d < distinct.size(); ++d)
    if (v.access.strides[d] == 0) r.access.strides[d] = 0;
  r.access.shape = v.access.shape;
  return r;
}

Value rounded(const Value& v, DType half) {
  Value r = converted(converted(v, half), compute_dtype(half));
  r.exact = true;
  return r;
}

Value reshaped(const Value& v, const Extents& shape) {
  Value r = v;
  if (auto same = reshaped(v.access, shape)) {
    r.access = std::move(*same);
    return r;
  }
  r = make_value(v.dtype, v.access.shape);
  r.exact = v.exact;
  copy_elements(v, r);
  r.access = *reshaped(r.access, shape);
  return r;
}

void write(const Value& v, const View& to) { copy_elements(v, borrowed(to)); }

}  // namespace kfusion::reference
