// The CUDA array interface (version 3), for device arrays without DLPack: Numba's.
#include "host/cuda.hpp"
#include "python/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

DType dtype_of(const Call& call, const char* argument, const std::string& text) {
  for (int i = 0; i < kDTypes; ++i)
    if (text == typestr(static_cast<DType>(i))) return static_cast<DType>(i);
  throw wrong_dtype(call, argument, "typestr " + text);
}

/// A field that is a tuple of at most kMaxDims integers; returns how many.
int read_field(const Call& call, const char* argument, const char* name, py::handle field, std::int64_t* to) {
  const auto refuse = [&] {
    throw TypeError(call.says(std::string(argument) + " must have a tuple of at most " + std::to_string(kMaxDims) +
                              " integers as the " + name + " of its __cuda_array_interface__, got " +
                              py::repr(field).cast<std::string>()));
  };
  if (!PyTuple_Check(field.ptr()) || PyTuple_GET_SIZE(field.ptr()) > kMaxDims) refuse();
  const auto numbers = py::reinterpret_borrow<py::tuple>(field);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    to[i] = PyLong_AsLongLong(numbers[i].ptr());
    if (to[i] == -1 && PyErr_Occurred()) PyErr_Clear(), refuse();
  }
  return static_cast<int>(numbers.size());
}

class CudaInterface final : public Framework {
 public:
  std::string name() const override { return "the CUDA array interface"; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    const auto d = a.object.attr("__cuda_array_interface__").cast<py::dict>();
    const auto field = [&](const char* name) { return d.contains(name) ? py::object(d[name]) : py::none(); };
    View& v = a.view;
    v.dtype = dtype_of(call, argument, py::str(field("typestr")).cast<std::string>());
    if (!field("mask").is_none()) throw TypeError(call.says(std::string(argument) + " must have no mask"));
    v.ndim = read_field(call, argument, "shape", field("shape"), v.shape);
    require_extents(call, argument, v);
    set_c_strides(v);
    if (const py::object strides = field("strides");
        !strides.is_none() && read_field(call, argument, "strides", strides, v.strides) != v.ndim)
      throw ValueError(call.says(std::string(argument) + " must have as many strides as axes"));
    std::int64_t data[kMaxDims];  // the address, and whether it may only be read
    if (read_field(call, argument, "data", field("data"), data) != 2)
      throw TypeError(call.says(std::string(argument) + " must have an address and a flag as its data"));
    v.data = reinterpret_cast<std::byte*>(data[0]);
    v.read_only = data[1] != 0;
    if (!v.data && v.size() > 0) throw TypeError(call.says(std::string(argument) + " must have memory, got address 0"));
    require_addressable(call, argument, v);
    if (cuda::device_count() == 0) cuda::require(0);  // says why there is none
    v.place = {PlaceKind::kCuda, v.data ? cuda::device_of(v.data) : 0};
    require_aligned_on_device(call, argument, v);
    const Stream stream = call.stream(*this, v.place.index);
    const py::object producer = field("stream");
    if (!producer.is_none()) cuda::wait(stream, producer.cast<Stream>(), v.place.index);
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
  static const auto& framework = *new CudaInterface;  // not destroyed: threads may still run at exit
  return framework;
}

}  // namespace kfusion::arrays
