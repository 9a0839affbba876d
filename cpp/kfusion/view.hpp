// A borrowed array: where its elements lie, and nothing about who owns them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kfusion/dtype.hpp"

namespace kfusion {

/// NumPy's and torch's own limit.
inline constexpr int kMaxDims = 64;

enum class PlaceKind : std::uint8_t { kHost, kCuda };

/// Where memory is.
struct Place {
  PlaceKind kind = PlaceKind::kHost;
  int index = 0;
  bool on_host() const { return kind == PlaceKind::kHost; }
  bool operator==(const Place&) const = default;
};

/// "cpu" or "cuda:0".
std::string to_string(Place p);
/// The place that to_string writes so.
std::optional<Place> place_named(std::string_view text);

/// Extents in elements, strides in bytes (negative and zero allowed), as the producer gave them.
struct View {
  View() = default;
  View(const View& v) noexcept { *this = v; }
  View& operator=(const View& v) noexcept;  ///< copies the axes that there are, not the kilobyte for all there can be

  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Place place;
  bool read_only = false;
  int ndim = 0;
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims];

  std::int64_t size() const;    ///< number of elements; throws ValueError where it exceeds 2^63 - 1
  std::int64_t nbytes() const;  ///< throws likewise
};

inline View& View::operator=(const View& v) noexcept {
  data = v.data;
  dtype = v.dtype;
  place = v.place;
  read_only = v.read_only;
  ndim = v.ndim;
  for (int d = 0; d < v.ndim; ++d) {
    shape[d] = v.shape[d];
    strides[d] = v.strides[d];
  }
  return *this;
}

/// "(4096, 1024)", "(512,)" or "()", as Python prints a tuple.
std::string shape_text(int ndim, const std::int64_t* shape);

/// Gives `v` the strides of a dense array in C order. Throws ValueError where its bytes exceed 2^63 - 1.
void set_c_strides(View& v);

/// The layout of a fresh result for `v`: dense, in `v`'s own axis order where `v` is dense in some order of its axes
/// (C, Fortran, any permutation), else C order. It has no data yet.
View result_layout(const View& v);

bool is_c_contiguous(const View& v);

/// Whether two elements of `v` share memory (a broadcast axis, say): such a view cannot be written to.
/// Conservative: an overlapping layout that is no nest of axes also answers true.
bool self_overlapping(const View& v);

/// Whether writing `out` in the same order as `x` is read is exact: `kNone` and `kSame` (element i of both
/// lies at one address) are; `kOther` may not be.
enum class Overlap { kNone, kSame, kOther };
Overlap overlap(const View& x, const View& out);

}  // namespace kfusion
