#include "bindings/bindings.hpp"
#include "kfusion/error.hpp"

namespace py = pybind11;

namespace kfusion {

// ValueError is a std::invalid_argument, which pybind11 knows.
void bind_errors(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const TypeError& e) {
      py::set_error(PyExc_TypeError, e.what());
    }
  });
  auto& device_error = py::register_local_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);
  device_error.attr("__module__") = "kfusion";
  device_error.attr("__doc__") = "What a driver, a device or a stream says no to.";
}

}  // namespace kfusion
