// CuPy arrays: borrowed by their attributes, which costs less than a capsule of __dlpack__ and synchronises nothing
// (the kernel runs on CuPy's own current stream); results from CuPy's own memory pool.
#include <pybind11/gil_safe_call_once.h>

#include <optional>

#include "python/arrays/array.hpp"
#include "python/arrays/library_functions.hpp"
#include "python/arrays/numpy.hpp"

namespace kfusion::arrays {
namespace {

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
    v.place = {PlaceKind::kCuda, data.attr("device_id").cast<int>()};
    v.data = reinterpret_cast<std::byte*>(data.attr("ptr").cast<std::uintptr_t>());
    v.dtype = dtype_of_numpy(call, argument, a.object.attr("dtype"));
    v.read_only = false;
    v.ndim = read_numbers(a.object.attr("shape"), v.shape);
    read_numbers(a.object.attr("strides"), v.strides);
    require_aligned_on_device(call, argument, v);
    call.stream(*this, v.place.index);
  }

  Stream current_stream(int device) const override { return get_current_stream_(device).attr("ptr").cast<Stream>(); }

  LibraryFunction function_for(const Node& n, Place place) const override { return cupy_function_for(n, place); }

  Result empty(const Call&, const View& layout, const Array& like) const override {
    std::optional<With> scope;  // CuPy allocates there
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
