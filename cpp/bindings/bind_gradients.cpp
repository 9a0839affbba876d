// What Graph has of gradients.
#include "bindings/bindings.hpp"
#include "kfusion/grad/equal.hpp"
#include "kfusion/grad/keep.hpp"
#include "kfusion/grad/reach.hpp"
#include "kfusion/grad/vjp.hpp"
#include "kfusion/graph/builder.hpp"
#include "python/records/device_dict.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace graph_gradients {

void set_gradients(GraphBuilder& g, NodeIds results, NodeIds arguments, NodeIds cotangents, NodeIds gradients,
                   const std::string& function, std::int64_t number, std::int64_t flops) {
  LibraryCallAttributes call;
  call.function = function;
  call.number = number;
  call.flops = flops;
  g.set_gradients(
      {std::move(results), std::move(arguments), std::move(cotangents), std::move(gradients), std::move(call)});
}

NodeId end_of(const GraphBuilder& g) { return static_cast<NodeId>(g.graph().nodes.size()); }

std::vector<NodeId> stopped(const GraphBuilder& g) {
  std::vector<NodeId> nodes;
  for (NodeId n = 0; n < end_of(g); ++n)
    if (g.is_stopped(n)) nodes.push_back(n);
  return nodes;
}

bool has_own_gradients(const GraphBuilder& g) {
  for (NodeId n = 0; n < end_of(g); ++n)
    if (g.gradients_of(n)) return true;
  return false;
}

py::list kept_for_backward(const GraphBuilder& g, const NodeIds& results, const NodeIds& inputs, const py::dict& device,
                           std::optional<std::int64_t> memory) {
  py::list all;
  for (const grad::Kept& k : grad::kept_for_backward(g, results, inputs, read_device(device), memory))
    all.append(py::make_tuple(k.node, k.result));
  return all;
}

py::list explain_kept(const GraphBuilder& g, const NodeIds& results, const NodeIds& inputs, const py::dict& device,
                      std::optional<std::int64_t> memory) {
  py::list all;
  for (const grad::Kept& k : grad::explained(g, results, inputs, read_device(device), memory))
    all.append(py::make_tuple(k.node, k.result, k.bytes, k.seconds));
  return all;
}

py::tuple vjp(GraphBuilder& g, const NodeIds& outputs, const NodeIds& cotangents, const NodeIds& inputs,
              std::int64_t first_call) {
  const grad::Vjp made = grad::add_vjp(g, outputs, cotangents, inputs, first_call);
  py::list calls;
  for (const grad::LibraryAdjoint& c : made.calls)
    calls.append(py::make_tuple(c.kind, c.numbers, c.results, c.arguments));
  return py::make_tuple(made.gradients, calls);
}

}  // namespace graph_gradients
}  // namespace

void bind_gradients(py::class_<GraphBuilder>& c) {
  using namespace graph_gradients;
  c.def("vjp", &vjp, py::arg("outputs"), py::arg("cotangents"), py::arg("inputs"), py::arg("first_call") = 0,
        R"(vjp(self, outputs, cotangents, inputs, first_call=0)
--

Adds the gradients of the inputs, for gradients of the outputs (cotangents): a list of nodes, and what functions of the
array library they call, which are numbered from first_call on: (kind, numbers, results, arguments) for each, as
cpp/kfusion/grad/vjp.hpp says. TypeError where an op on the way has no adjoint.
)");
  c.def("kept_for_backward", &kept_for_backward, py::arg("results"), py::arg("inputs"), py::arg("device"),
        py::arg("memory") = py::none(), R"(kept_for_backward(self, results, inputs, device, memory=None)
--

What backward reads for gradients of the inputs, by a minimal cut: a list of (node, result), where `result` is the
number of the function's result that it is, or -1. `device`: a dict, as Device.to_dict() gives; `memory`: no more bytes
than these. ValueError where what must not be computed again has more.
)");
  c.def("explain_kept", &explain_kept, py::arg("results"), py::arg("inputs"), py::arg("device"),
        py::arg("memory") = py::none(), R"(explain_kept(self, results, inputs, device, memory=None)
--

The same, as a list of (node, result, bytes of its own, seconds that it saves).
)");
  c.def(
      "computed",
      [](const GraphBuilder& g) {
        const grad::Computed found = grad::computed(g.graph());
        return py::make_tuple(found.hash, found.nodes);
      },
      R"(computed(self)
--

A hash of what the nodes do, whatever their extents, and those that are neither inputs, constants nor views.
)");
  c.def("needed_backward", &grad::needed_backward, py::arg("outputs"), py::arg("inputs"), py::arg("candidates"),
        R"(needed_backward(self, outputs, inputs, candidates)
--

Those of the candidates that gradients of the inputs need, for some gradients of the outputs.
)");
  c.def("reaching", &grad::reaching, py::arg("outputs"), py::arg("inputs"),
        R"(reaching(self, outputs, inputs)
--

Those of the outputs through which gradients reach some of the inputs.
)");
  c.def("reached", &grad::reached, py::arg("outputs"), py::arg("inputs"),
        R"(reached(self, outputs, inputs)
--

For each of the inputs, whether gradients of some of the outputs reach it.
)");
  c.def("replace", &grad::replace_values, py::arg("nodes"), py::arg("by"), R"(replace(self, nodes, by)
--

Nodes read those of `by` in the place of `nodes`, and of all nodes of the same values.
)");
  c.def("donate", &GraphBuilder::donate, py::arg("input"), R"(donate(self, input)
--

Nobody reads the input after a run, which may use its memory for other values, and gives it back.
)");
  c.def("stop_gradient", &GraphBuilder::stop_gradient, py::arg("x"),
        "stop_gradient(self, x)\n--\n\nGradients take the node for a constant.\n");
  c.def("stopped", &stopped, "stopped(self)\n--\n\nThe nodes that gradients take for constants.\n");
  c.def("has_own_gradients", &has_own_gradients, R"(has_own_gradients(self)
--

Whether set_gradients has said of a node what its gradients are.
)");
  c.def("set_gradients", &set_gradients, py::arg("results"), py::arg("arguments"), py::arg("cotangents"),
        py::arg("gradients"), py::arg("function") = "", py::arg("number") = 0, py::arg("flops") = 0,
        R"(set_gradients(self, results, arguments, cotangents, gradients, function='', number=0, flops=0)
--

Says what the gradients of nodes are by each of arguments, whatever computes them: `gradients`, in which cotangents
stand for those of results. Without cotangents: gradients, times that of the one result, which broadcasts to each
argument. Without any: what the adjoint of the array library's function of that number gives.
)");
}

}  // namespace kfusion
