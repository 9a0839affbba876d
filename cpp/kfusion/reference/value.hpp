// What the reference interpreter holds for a node: elements of one of five dtypes (half types are held as float32),
// read through strides, so that a view shares its argument's memory.
#pragma once
#include <memory>

#include "kfusion/plan/views/access.hpp"
#include "kfusion/reference/walk.hpp"

namespace kfusion::reference {

struct Value {
  DType dtype = DType::kFloat32;
  std::byte* data = nullptr;
  Access access;  ///< strides and offset in bytes
  std::shared_ptr<std::byte[]> memory = nullptr;
  bool exact = false;  ///< elements of a half type are rounded to it

  std::byte* first() const { return data + access.offset; }
};

/// Uninitialised, in C order. Throws std::bad_alloc.
Value make_value(DType dtype, const Extents& shape);

/// The elements of an array that others own, of any dtype.
Value borrowed(const View& v);

/// A copy of another dtype, dense but for axes along which elements are repeated: those stay so.
Value converted(const Value& v, DType dtype);

/// Float32 values as they are after a half type has held them.
Value rounded(const Value& v, DType half);

/// Other extents over the same elements, copied where strides cannot express that.
Value reshaped(const Value& v, const Extents& shape);

/// Between values of one shape, of any dtypes.
void copy_elements(const Value& from, const Value& to);

/// Writes the elements to an array of the same shape and any dtype.
void write(const Value& v, const View& to);

}  // namespace kfusion::reference
