// Graphs as XLA's custom calls.
#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/ops/names.hpp"
#include "python/jax/executables.hpp"
#include "python/jax/handler.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/plan_options.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace jax_binding {

constexpr const char* kHandlerDoc = R"(xla_handler(minor)
--

The handler of XLA's custom calls, as jax.ffi.register_ffi_target takes it. It runs the graph that the call's attribute
"key" (int64) names; "graph" (a string) is what it is made of where that is not known.

Args:
    minor: the minor version of XLA's interface that it says it was written for.
)";

constexpr const char* kCompileDoc = R"(xla_compile(key, graph, device, options)
--

Compiles a graph for custom calls of that key: XLA's threads run it without Python.

Args:
    key: int of 64 bits, the same for equal graphs only.
    graph: a Graph; its arrays are in C order.
    device: dict of a Device's fields.
    options: dict of the plan's options, as for make_plan. Nothing is left to functions of the array library.

Raises:
    ValueError: a part of the graph has no kernel.
    kfusion.DeviceError: the device cannot be used.
)";

constexpr const char* kLoaderDoc = R"(set_xla_loader(loader)
--

loader(key, text) calls xla_compile for a call that nobody has compiled in this process.
)";

Place place_of(const Graph& g) {
  for (const Node& n : g.nodes)
    if (n.op == Op::input) return n.place;
  return {};
}

py::capsule handler(int minor) {
  ffi::set_minor_version(minor);
  return py::capsule(reinterpret_cast<void*>(&ffi::run_custom_call), "xla._CUSTOM_CALL_TARGET");
}

/// Reads options, without the library's functions, which are Python's.
PlanOptions options_of(const py::dict& options) {
  PlanOptions read = read_options(options, available_executors());
  if (read.beyond_executors())
    throw ValueError("kfusion: executors must be named: a plan of what is possible does not run");
  std::erase_if(read.executors, [](const Executor* e) { return e->name() == "array_library"; });
  return read;
}

void compile(std::int64_t key, const GraphBuilder& graph, const py::dict& device, const py::dict& options) {
  const Graph& g = graph.graph();
  ffi::add_call(key, std::make_shared<const ffi::Call>(g, read_device(device), options_of(options), place_of(g)));
}

}  // namespace jax_binding
}  // namespace

void bind_jax(py::module_& m) {
  m.def("xla_handler", &jax_binding::handler, py::arg("minor"), jax_binding::kHandlerDoc);
  m.def("xla_compile", &jax_binding::compile, py::arg("key"), py::arg("graph"), py::arg("device"), py::arg("options"),
        jax_binding::kCompileDoc);
  m.def("set_xla_loader", &ffi::set_loader, py::arg("loader"), jax_binding::kLoaderDoc);
}

}  // namespace kfusion
