// Borrowing through DLPack: what the C exchange API and the capsules of __dlpack__ have in common.
#pragma once
#include "kfusion/enumerators.hpp"
#include "python/arrays/array.hpp"
#include "python/arrays/dlpack_abi.hpp"

namespace kfusion::arrays {

/// Fills everything but `read_only`. Throws TypeError for a dtype or device that no kernel takes and for what has no
/// memory, ValueError for extents and strides that no memory has.
void fill_view(const Call& call, const char* argument, const dlpack::Tensor& t, View& v);

/// `v` as a DLPack tensor that points to `v`'s extents, C order (`strides` is NULL).
dlpack::Tensor prototype(const View& v);

/// Shows numbers that graphs have no dtype for in another one, complex numbers as pairs of floats along a last axis
/// more. Returns DLPack's type of theirs, 0 for numbers of ours, which stay as they are. `shape` and `strides` are room
/// for those.
std::uint16_t show_stored(dlpack::Tensor& t, std::int64_t* shape, std::int64_t* strides);

/// Calls object.__dlpack__ (versioned first, so that read-only arrays come; `stream` empty on the CPU), takes the
/// capsule and fills `a.view` and `a.keep`.
void borrow_capsule(const Call& call, const char* argument, Array& a, std::optional<long long> stream);

/// DLPack's name of a place.
inline dlpack::DeviceId device_id(Place p) {
  constexpr dlpack::DeviceType kTypes[] = {dlpack::kCpu, dlpack::kCuda};  // by PlaceKind
  static_assert(std::size(kTypes) == kEnumerators<PlaceKind>);
  return {kTypes[static_cast<std::size_t>(p.kind)], p.index};
}

inline bool on_cuda(dlpack::DeviceId d) {
  return d.device_type == dlpack::kCuda || d.device_type == dlpack::kCudaManaged;
}

}  // namespace kfusion::arrays
