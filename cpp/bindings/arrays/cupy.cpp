// CuPy arrays: borrowed by their attributes, which costs less than a capsule of __dlpack__ and synchronises nothing
// (the kernel runs on CuPy's own current stream); results from CuPy's own memory pool.
#include <pybind11/gil_safe_call_once.h>

#include <optional>

#include "bindings/arrays/array.hpp"
#include "bindings/arrays/numpy.hpp"

namespace kfusion::arrays {
namespace {

/// `with device:`
class CurrentDevice {
 public:
  explicit CurrentDevice(py::object device) : device_(std::move(device)) { device_.attr("__enter__")(); }
  ~CurrentDevice() {
    try {
      device_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("kfusion: CuPy's current device");
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  py::object device_;
};

/// A tuple of at most kMaxDims integers; returns how many.
int read_numbers(const py::object& tuple, std::int64_t* to) {
  const auto numbers = py::reinterpret_borrow<py::tuple>(tuple);
  for (std::size_t i = 0; i < numbers.size(); ++i) to[i] = numbers[i].cast<std::int64_t>();
  return static_cast<int>(numbers.size());
}

class Cupy final : public Framework {
 public:
  explicit Cupy(const py::object& cupy)
      : ndarray_(cupy.attr("ndarray").cast<py::object>().release()),
        alloc_(cupy.attr("cuda").attr("alloc").cast<py::object>().release()),
        get_current_stream_(cupy.attr("cuda").attr("get_current_stream").cast<py::object>().release()),
        get_device_(cupy.attr("cuda").attr("runtime").attr("getDevice").cast<py::object>().release()) {}

  std::string name() const override { return "CuPy"; }
  ArrayLibrary library() const override { return ArrayLibrary::kCupy; }
  bool knows_stream() const override { return true; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    View& v = a.view;
    const py::object data = a.object.attr("data");
    v.place = {true, data.attr("device_id").cast<int>()};
    v.data = reinterpret_cast<std::byte*>(data.attr("ptr").cast<std::uintptr_t>());
    v.dtype = dtype_of_numpy(call, argument, a.object.attr("dtype"));
    v.read_only = false;
    v.ndim = read_numbers(a.object.attr("shape"), v.shape);
    read_numbers(a.object.attr("strides"), v.strides);
    require_aligned_on_device(call, argument, v);
    call.stream(*this, v.place.index);
  }

  cuda::Stream current_stream(int device) const override {
    return get_current_stream_(device).attr("ptr").cast<cuda::Stream>();
  }

  Result empty(const Call&, const View& layout, const Array& like) const override {
    std::optional<CurrentDevice> scope;  // CuPy allocates there
    if (get_device_().cast<int>() != like.view.place.index) scope.emplace(like.object.attr("device"));
    const py::object fresh = ndarray_(to_tuple(layout.ndim, layout.shape), py::arg("dtype") = numpy_dtype(layout.dtype),
                                      py::arg("memptr") = alloc_(layout.nbytes()),
                                      py::arg("strides") = to_tuple(layout.ndim, layout.strides));
    Result r{layout, fresh};
    r.view.data = reinterpret_cast<std::byte*>(fresh.attr("data").attr("ptr").cast<std::uintptr_t>());
    return r;
  }

 private:
  py::handle ndarray_, alloc_, get_current_stream_, get_device_;  // kept for the life of the process
};

}  // namespace

const Framework& cupy_framework() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<const Framework*> storage;
  return *storage.call_once_and_store_result([]() -> const Framework* { return new Cupy(loaded_module("cupy")); })
              .get_stored();
}

}  // namespace kfusion::arrays
