// DeviceArray: a minimal dense array of our own, so that a plain install with a GPU needs no other library, and the
// carrier of results that another library takes over through DLPack (then in host memory as well).
#pragma once
#include <atomic>

#include "python/arrays/array.hpp"

namespace kfusion::arrays {

/// Memory that arrays and DLPack exports share; given back with the last of them.
struct Buffer {
  Buffer(std::size_t bytes, Place place);
  /// Memory of others, which is not given back here.
  Buffer(std::byte* borrowed, Place at) : bytes(0), place(at), data(borrowed), is_borrowed(true) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::size_t bytes;
  Place place;
  std::byte* data = nullptr;
  bool is_borrowed = false;
  std::atomic<bool> exported = false;  ///< another library may have work of its own under way on it
};

struct DeviceArray {
  std::shared_ptr<Buffer> buffer;
  View view;

  py::capsule dlpack(py::handle stream, py::handle max_version, py::handle dl_device, py::handle copy) const;
  py::dict cuda_array_interface() const;
  py::object numpy() const;
};

/// The type's name in the CUDA array interface; empty for bfloat16, which it does not know.
std::string typestr(DType t);

bool is_own(py::handle object);
Result own_empty(const View& layout);

/// A contiguous copy of a NumPy array on a CUDA device.
DeviceArray to_device(py::handle x, int device);

}  // namespace kfusion::arrays
