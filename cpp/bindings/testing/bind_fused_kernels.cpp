// The CPU's kernels one by one, on addresses: for tests and measurements.
#include "bindings/testing/testing.hpp"
#include "cpu/loops/loop_kernel.hpp"
#include "kfusion/graph/builder.hpp"
#include "python/gil.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace bind_fused_kernels_detail {

constexpr const char* kDoc = R"(fused_kernels(graph, device, fuse=True)
--

The kernels that the CPU runs for a graph, as `lower` lists them, for the instruction set in use.

Args:
    graph: a Graph.
    device: dict of a Device's fields.
    fuse: False for one kernel per stage.

Returns:
    A list of functions run(loads, stores, parameters=[]) -> None, which take addresses of element 0 of each operand's
    array (of loads, then of tables) as integers and check nothing but indices: IndexError for one out of bounds; None
    where the array library computes.
)";

using Addresses = std::vector<std::uintptr_t>;

template <class Pointer>
std::vector<Pointer> pointers(const Addresses& addresses) {
  std::vector<Pointer> p;
  for (const std::uintptr_t a : addresses) p.push_back(reinterpret_cast<Pointer>(a));
  return p;
}

py::object function(Kernel kernel) {
  auto fused = std::make_shared<cpu::LoopKernel>(kernel);
  return py::cpp_function(
      [fused](const Addresses& loads, const Addresses& stores, const std::vector<double>& parameters) {
        const auto from = pointers<const std::byte*>(loads);
        const auto to = pointers<std::byte*>(stores);
        const ReleaseGil unlocked;
        fused->run(from.data(), to.data(), parameters.data());
      },
      py::arg("loads"), py::arg("stores"), py::arg("parameters") = std::vector<double>{});
}

py::list kernels(const GraphBuilder& builder, const py::dict& device, bool fuse) {
  const Plan plan = make_plan(builder.graph(), read_device(device), options_to_run(fuse));
  const Lowering lowering(plan);
  py::list list;
  for (std::size_t i = 0; i < plan.groups.size(); ++i)
    list.append(is_loops(plan.groups[i].pattern) ? function(lowering.kernel(static_cast<int>(i))) : py::none());
  return list;
}

}  // namespace bind_fused_kernels_detail

void bind_fused_kernels(py::module_& m) {
  m.def("fused_kernels", &bind_fused_kernels_detail::kernels, py::arg("graph"), py::arg("device"),
        py::arg("fuse") = true, bind_fused_kernels_detail::kDoc);
}

}  // namespace kfusion::testing
