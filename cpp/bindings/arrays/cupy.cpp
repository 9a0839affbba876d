// CuPy arrays: borrowed through __dlpack__ without synchronisation (the kernel runs on CuPy's own current stream),
// results from CuPy's own memory pool.
#include <pybind11/gil_safe_call_once.h>

#include "bindings/arrays/dlpack.hpp"

namespace kfusion::arrays {
namespace {

class Cupy final : public Framework {
 public:
  explicit Cupy(const py::object& cupy)
      : ndarray_(cupy.attr("ndarray").cast<py::object>().release()),
        get_current_stream_(cupy.attr("cuda").attr("get_current_stream").cast<py::object>().release()) {}

  std::string name() const override { return "CuPy"; }

  void borrow(Call& call, const char* argument, Array& a) const override {
    call.stream(*this, dlpack_device(a.object).device_id);
    borrow_capsule(call, argument, a, -1);
  }

  cuda::Stream current_stream(int device) const override {
    return get_current_stream_(device).attr("ptr").cast<cuda::Stream>();
  }

  Result empty_like(Call&, const Array& like) const override {
    View layout = like.view;
    dense_strides_like(like.view, layout.strides);
    py::tuple shape(layout.ndim), strides(layout.ndim);
    for (int d = 0; d < layout.ndim; ++d) {
      shape[d] = layout.shape[d];
      strides[d] = layout.strides[d];
    }
    const py::object device = like.object.attr("device");  // CuPy allocates on its current device
    device.attr("__enter__")();
    py::object fresh;
    try {
      fresh = ndarray_(shape, py::arg("dtype") = like.object.attr("dtype"), py::arg("strides") = strides);
    } catch (...) {
      device.attr("__exit__")(py::none(), py::none(), py::none());
      throw;
    }
    device.attr("__exit__")(py::none(), py::none(), py::none());
    layout.data = reinterpret_cast<std::byte*>(fresh.attr("data").attr("ptr").cast<std::uintptr_t>());
    layout.read_only = false;
    return {layout, fresh};
  }

 private:
  py::handle ndarray_, get_current_stream_;  // kept for the life of the process
};

}  // namespace

const Framework& cupy_framework() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<const Framework*> storage;
  return *storage.call_once_and_store_result([]() -> const Framework* { return new Cupy(loaded_module("cupy")); })
              .get_stored();
}

}  // namespace kfusion::arrays
