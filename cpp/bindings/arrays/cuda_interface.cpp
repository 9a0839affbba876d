// The CUDA array interface (version 3), for device arrays without DLPack: Numba's.
#include "bindings/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

DType dtype_of(const Call& call, const char* argument, const std::string& text) {
  for (int i = 0; i < kDTypes; ++i)
    if (text == typestr(static_cast<DType>(i))) return static_cast<DType>(i);
  throw wrong_dtype(call, argument, "typestr " + text);
}

class CudaInterface final : public Framework {
 public:
  std::string name() const override { return "the CUDA array interface"; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    const auto d = a.object.attr("__cuda_array_interface__").cast<py::dict>();
    View& v = a.view;
    v.dtype = dtype_of(call, argument, d["typestr"].cast<std::string>());
    const auto shape = d["shape"].cast<py::tuple>(), data = d["data"].cast<py::tuple>();
    v.data = reinterpret_cast<std::byte*>(data[0].cast<std::uintptr_t>());
    v.read_only = data[1].cast<bool>();
    if (shape.size() > kMaxDims) throw ValueError(call.says(std::string(argument) + " has too many axes"));
    v.ndim = static_cast<int>(shape.size());
    const py::object strides = d.contains("strides") ? py::object(d["strides"]) : py::none();
    for (int k = 0; k < v.ndim; ++k) v.shape[k] = shape[k].cast<std::int64_t>();
    set_c_strides(v);
    if (!strides.is_none())
      for (int k = 0; k < v.ndim; ++k) v.strides[k] = strides.cast<py::tuple>()[k].cast<std::int64_t>();
    if (cuda::device_count() == 0) cuda::require(0);  // says why there is none
    v.place = {true, v.data ? cuda::device_of(v.data) : 0};
    require_aligned_on_device(call, argument, v);
    const cuda::Stream stream = call.stream(*this, v.place.index);
    const py::object producer = d.contains("stream") ? py::object(d["stream"]) : py::none();
    if (!producer.is_none()) cuda::wait(stream, producer.cast<cuda::Stream>(), v.place.index);
  }

  /// Numba's kind where Numba is in use, which is what has no DLPack; else our own.
  py::object finish(Result& r) const override {
    const py::object numba = loaded_module("numba.cuda");
    return numba && !typestr(r.view.dtype).empty() ? py::object(numba.attr("as_cuda_array")(r.object)) : r.object;
  }
};

}  // namespace

std::string typestr(DType t) {
  if (t == DType::kBFloat16) return {};
  if (t == DType::kBool) return "|b1";
  return (is_integer(t) ? "<i" : "<f") + std::to_string(item_bytes(t));
}

const Framework& cuda_interface_framework() {
  static const CudaInterface framework;
  return framework;
}

}  // namespace kfusion::arrays
