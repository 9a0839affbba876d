// The extension module kfusion._core: one bind_*.cpp per subject.
#include <pybind11/pybind11.h>

#include "bindings/bindings.hpp"
#include "bindings/testing/testing.hpp"
#include "python/arrays/numpy.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_core_of_main, m, py::mod_gil_not_used()) {
  // Every docstring starts with its own signature line, which becomes __text_signature__.
  py::options options;
  options.disable_function_signatures();

  kfusion::arrays::import_numpy();
  m.attr("__version__") = KFUSION_VERSION;
  kfusion::bind_errors(m);
  kfusion::bind_savings(m);
  kfusion::bind_copy(m);
  kfusion::bind_device(m);
  kfusion::bind_device_array(m);
  kfusion::bind_runtime(m);
  kfusion::bind_graph(m);
  kfusion::bind_reference(m);
  kfusion::bind_plan(m);
  kfusion::bind_executors(m);
  kfusion::bind_compiler(m);
  kfusion::bind_machine_code(m);
  kfusion::bind_codegen(m);
  kfusion::bind_tuning(m);
  kfusion::bind_fuse(m);
  kfusion::bind_jax(m);
  kfusion::bind_messages(m);
#ifdef KFUSION_TESTING
  py::module_ testing = m.def_submodule("testing", "What only tests call.");
  kfusion::testing::bind(testing);
  kfusion::bind_messages(testing);
#endif
}

/// What Python calls. NumPy's C interface and the types that are known of here belong to one interpreter; pybind11 asks
/// for the GIL as the main one's thread before it looks, and would wait for ever in another one (before Python 3.12).
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError, "kfusion._core can be imported in the main interpreter only, not in others");
  return nullptr;
}
