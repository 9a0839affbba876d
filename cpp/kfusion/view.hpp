// A borrowed array: where its elements lie, and nothing about who owns them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kfusion/dtype.hpp"

namespace kfusion {

/// NumPy's and torch's own limit.
inline constexpr int kMaxDims = 64;

struct Device {
  bool cuda = false;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:0".
std::string to_string(Device d);

/// Extents in elements, strides in bytes (negative and zero allowed), as the producer gave them.
struct View {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Device device;
  bool read_only = false;
  int ndim = 0;
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims];

  std::int64_t size() const;  ///< number of elements; throws ValueError where it exceeds 2^63 - 1
  std::int64_t nbytes() const { return size() * static_cast<std::int64_t>(item_bytes(dtype)); }
};

/// "(4096, 1024)", "(512,)" or "()", as Python prints a tuple.
std::string shape_text(int ndim, const std::int64_t* shape);

/// Strides in bytes of a fresh dense array of `v`'s shape: `v`'s own axis order where `v` is dense in some
/// order of its axes (C, Fortran, any permutation), else C order.
void dense_strides_like(const View& v, std::int64_t* strides);

bool is_c_contiguous(const View& v);

/// Whether two elements of `v` share memory (a broadcast axis, say): such a view cannot be written to.
/// Conservative: an overlapping layout that is no nest of axes also answers true.
bool self_overlapping(const View& v);

/// Whether writing `out` in the same order as `x` is read is exact: `kNone` and `kSame` (element i of both
/// lies at one address) are; `kOther` may not be.
enum class Overlap { kNone, kSame, kOther };
Overlap overlap(const View& x, const View& out);

}  // namespace kfusion
