// The executors that there are.
#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "python/records/device_dict.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace executors_binding {

constexpr const char* kExecutorsDoc = R"(executors(device)
--

The executors for a device, in the order in which they are asked: a list of (name, patterns that it has kernels for).

Args:
    device: dict of a Device's fields.
)";

py::list executors(const py::dict& fields) {
  const Device device = read_device(fields);
  py::list list;
  for (const Executor* e : available_executors()) {
    py::list patterns;
    for (int i = 0; i < kPatterns; ++i)
      if (e->has(static_cast<Pattern>(i), device)) patterns.append(name(static_cast<Pattern>(i)));
    if (!patterns.empty()) list.append(py::make_tuple(e->name(), patterns));
  }
  return list;
}

}  // namespace executors_binding
}  // namespace

void bind_executors(py::module_& m) {
  m.def("executors", &executors_binding::executors, py::arg("device"), executors_binding::kExecutorsDoc);
}

}  // namespace kfusion
