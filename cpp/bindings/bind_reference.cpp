#include "bindings/bindings.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/reference/reference.hpp"
#include "python/arrays/numpy.hpp"
#include "python/gil.hpp"
#include "python/stl.hpp"
#include "runtime/views.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace reference_binding {

using arrays::Array;
using arrays::Call;
using arrays::Framework;
using arrays::Result;

constexpr const char* kDoc = R"(run_graph(graph, inputs, function_name)
--

Computes a graph on the CPU with the reference executor: one node after the other, no fusion.

Args:
    graph: a Graph.
    inputs: an array of any kind on the CPU (or a NumPy scalar) for each input node, in order, with the node's dtype and
        shape, any strides.
    function_name: for messages, which start with "kfusion.<function_name>: ".

Returns:
    A list of the graph's outputs, arrays of the first input's kind (NumPy's where there is none); NumPy results without
    axes are NumPy scalars. They are laid out as the inputs of their shape are where those agree and are dense, else in C
    order.

Raises:
    TypeError: an input is no array, or not of its node's dtype.
    ValueError: the number of inputs or a shape is not the graph's.
    IndexError: an index of `take` or `take_along_axis` is out of bounds.
    kfusion.DeviceError: an input is on a device.
    MemoryError: no host memory for a result or an intermediate.
)";

std::vector<const Node*> input_nodes(const Graph& g) {
  std::vector<const Node*> nodes;
  for (const Node& n : g.nodes)
    if (n.op == Op::input) nodes.push_back(&n);
  return nodes;
}

Array read_input(Call& call, const Node& n, py::handle object) {
  const char* argument = std::get<InputAttributes>(n.attributes).name.c_str();
  Array a = arrays::borrow(call, argument, object);
  const std::string who = argument;
  if (!a.view.place.on_host())
    throw DeviceError(call.says("this version computes it on the CPU, and " + who + " is on " +
                                to_string(a.view.place) +
                                ": copy it to the CPU (x.cpu() in torch, x.get() in CuPy, numpy.asarray(x) in JAX, "
                                "x.numpy() of a DeviceArray)"));
  if (a.view.dtype != n.dtype)
    throw TypeError(call.says(who + " must be " + name(n.dtype) + ", got " + name(a.view.dtype)));
  const std::string wanted = shape_text(static_cast<int>(n.shape.size()), n.shape.data());
  const std::string came = shape_text(a.view.ndim, a.view.shape);
  if (wanted != came) throw ValueError(call.says(who + " must have shape " + wanted + ", got " + came));
  return a;
}

Result make_output(const Call& call, View layout, const std::vector<Array>& inputs) {
  layout.place = {};
  if (inputs.empty()) return arrays::numpy_empty(layout, arrays::numpy_dtype(layout.dtype));
  return inputs[0].framework->empty(call, layout, inputs[0]);
}

py::object finish(Result& r, const std::vector<Array>& inputs) {
  const py::object object = inputs.empty() ? std::move(r.object) : inputs[0].framework->finish(r);
  return r.view.ndim == 0 && arrays::is_numpy(object) ? py::object(object[py::tuple()]) : object;
}

void compute(const Call& call, const Graph& g, const std::vector<View>& from, const std::vector<Result>& results) {
  std::vector<View> to;
  for (const Result& r : results) to.push_back(r.view);
  const ReleaseGil unlocked;
  try {
    run_reference(g, from, to);
  } catch (const ValueError& e) {
    throw ValueError(call.says(e.what()));
  } catch (const IndexError& e) {
    throw IndexError(call.says(e.what()));
  }
}

py::list run(const GraphBuilder& graph, std::vector<py::object> objects, const std::string& function_name) {
  Call call(function_name.c_str(), py::none(), arrays::Takes::kAll);
  const Graph g = graph.graph();  // its own: another thread may build on while this one computes
  const auto nodes = input_nodes(g);
  if (objects.size() != nodes.size())
    throw ValueError(
        call.says("the graph has " + std::to_string(nodes.size()) + " inputs, got " + std::to_string(objects.size())));
  std::vector<Array> inputs;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    objects[i] = arrays::array_of_scalar(std::move(objects[i]));  // results without axes are scalars
    inputs.push_back(read_input(call, *nodes[i], objects[i]));
  }
  std::vector<View> views;
  for (const Array& a : inputs) views.push_back(a.view);
  std::vector<Result> results;
  for (const Output& o : g.outputs) results.push_back(make_output(call, shared_layout(g[o.node], views), inputs));
  compute(call, g, views, results);
  py::list list;
  for (Result& r : results) list.append(finish(r, inputs));
  return list;
}

}  // namespace reference_binding
}  // namespace

void bind_reference(py::module_& m) {
  m.def("run_graph", &reference_binding::run, py::arg("graph"), py::arg("inputs"), py::arg("function_name"),
        reference_binding::kDoc);
}

}  // namespace kfusion
