// The extension module kfusion._core: one bind_*.cpp per subject.
#include <pybind11/pybind11.h>

#include "bindings/arrays/numpy.hpp"
#include "bindings/bindings.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  // Every docstring starts with its own signature line, which becomes __text_signature__.
  py::options options;
  options.disable_function_signatures();

  kfusion::arrays::import_numpy();
  m.attr("__version__") = KFUSION_VERSION;
  kfusion::bind_errors(m);
  kfusion::bind_savings(m);
  kfusion::bind_relu_layernorm(m);
  kfusion::bind_copy(m);
  kfusion::bind_device(m);
  kfusion::bind_device_array(m);
  kfusion::bind_runtime(m);
  kfusion::bind_graph(m);
  kfusion::bind_reference(m);
  kfusion::bind_plan(m);
  kfusion::bind_compiler(m);
  kfusion::bind_lower(m);
  kfusion::bind_codegen(m);
  kfusion::bind_fused_kernels(m);
  kfusion::bind_fuse(m);
  kfusion::bind_messages(m);
}
