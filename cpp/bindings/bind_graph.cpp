#include "bindings/bindings.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/axes.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/ops/signature.hpp"
#include "python/records/graph_dict.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace graphs {

using Builder = GraphBuilder;

constexpr const char* kClassDoc = R"(Graph()
--

The operations of a traced function: what calculator, planner, executors and reports read.

Each building method infers dtype and shape, adds a node and returns its id. Any number of threads may read a graph
that no thread builds.)";

Op read_op(const std::string& text) {
  if (const auto op = op_named(text)) return *op;
  throw ValueError("kfusion.Graph: no op is named '" + text + "'");
}

DType read_dtype(const std::string& text) {
  if (const auto t = dtype_named(text)) return *t;
  throw TypeError(
      "kfusion.Graph: dtype must be one of bool, int32, int64, float16, bfloat16, float32 and float64, got '" + text +
      "'");
}

Library read_library(const std::string& text) {
  if (text == "numpy" || text == "torch") return text == "torch" ? Library::kTorch : Library::kNumpy;
  throw ValueError("kfusion.Graph: library must be 'numpy' or 'torch', got '" + text + "'");
}

Place read_place(const std::string& text) {
  if (const auto place = place_named(text)) return *place;
  throw ValueError("kfusion.Graph: device must be 'cpu' or 'cuda:0' and so on, got '" + text + "'");
}

NodeId input(Builder& g, std::string input_name, Extents shape, const std::string& dtype, const std::string& library,
             const std::string& device, bool captured, Extents strides) {
  return g.input(std::move(input_name), std::move(shape), read_dtype(dtype), read_library(library), read_place(device),
                 captured, std::move(strides));
}

NodeId scalar(Builder& g, py::handle value, int parameter) {
  if (PyBool_Check(value.ptr())) return g.weak_bool(value.ptr() == Py_True);
  if (PyFloat_CheckExact(value.ptr())) return g.weak_float(PyFloat_AS_DOUBLE(value.ptr()), parameter);
  if (!PyLong_Check(value.ptr()))
    throw TypeError("kfusion.Graph: a scalar must be a Python bool, int or float, got " +
                    std::string(py::repr(py::type::of(value))));
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0) throw std::overflow_error("kfusion.Graph: Python integer out of bounds for int64");
  return g.weak_int(n);
}

NodeId slice(Builder& g, NodeId x, const std::vector<std::array<std::int64_t, 3>>& slices) {
  std::vector<AxisSlice> axes;
  for (const auto& [start, stop, step] : slices) axes.push_back({start, stop, step});
  return g.slice(x, std::move(axes));
}

using Pair = std::array<std::int64_t, 2>;

NodeId conv2d(Builder& g, NodeId x, NodeId w, const Pair& stride, const Pair& padding, const Pair& dilation,
              std::int64_t groups) {
  return g.conv2d(x, w, {{stride[0], stride[1]}, {padding[0], padding[1]}, {dilation[0], dilation[1]}, groups});
}

std::vector<NodeId> library_call(Builder& g, const NodeIds& arguments, const py::list& results,
                                 const std::string& function, std::int64_t number, std::int64_t flops) {
  std::vector<Builder::ResultType> types;
  for (const py::handle r : results) {
    const auto [dtype, shape] = r.cast<std::pair<std::string, Extents>>();
    types.push_back({read_dtype(dtype), shape});
  }
  LibraryCallAttributes call;
  call.function = function;
  call.number = number;
  call.flops = flops;
  return g.library_call(std::move(call), arguments, types);
}

void set_outputs(Builder& g, const std::vector<std::pair<std::string, NodeId>>& named) {
  std::vector<Output> outputs;
  for (const auto& [output_name, id] : named) outputs.push_back({output_name, id});
  g.set_outputs(std::move(outputs));
}

const Node& node(const Builder& g, NodeId id) {
  if (id >= 0 && id < std::ssize(g.graph().nodes)) return g.graph()[id];
  throw ValueError("kfusion.Graph: no node " + std::to_string(id));
}

/// What a node of a graph needs of others than its arguments: shape rules hold for those alone.
NodeId again(Builder& g, const Builder& from, NodeId id, NodeIds arguments, std::optional<Extents> shape) {
  Node n = node(from, id);
  bool is_alike = arguments.size() == n.arguments.size() && (!shape || shape->size() == n.shape.size());
  for (std::size_t i = 0; is_alike && i < arguments.size(); ++i) {
    const Node &own = node(from, n.arguments[i]), &other = node(g, arguments[i]);
    is_alike = own.dtype == other.dtype && own.shape.size() == other.shape.size();
  }
  if (!is_alike) throw ValueError("again: arguments must have the dtypes and numbers of axes of the node's own");
  if (shape) n.shape = std::move(*shape);
  return g.again(std::move(n), std::move(arguments));
}

std::string repr(const Builder& g) {
  const auto inputs = std::ranges::count(g.graph().nodes, Op::input, &Node::op);
  return "kfusion.Graph(nodes=" + std::to_string(g.graph().nodes.size()) + ", inputs=" + std::to_string(inputs) +
         ", outputs=" + std::to_string(g.graph().outputs.size()) + ")";
}

py::list op_rows() {
  py::list rows;
  for (const OpInfo& row : op_table()) {
    py::dict d;
    d["name"] = row.name;
    d["kind"] = name(row.kind);
    d["arity"] = row.arity;
    d["signature"] = info(row.signature).name;
    d["takes"] = info(row.signature).takes_words;
    d["gives"] = info(row.signature).gives_words;
    d["flops"] = row.flops;
    d["other_names"] = other_names(row);
    for (const char* library : {"lax", "onnx"}) d[library] = other_names(row, library);
    d["doc"] = row.doc;
    d["cost"] = name(row.cost);
    d["facts"] = names_of_facts(row.facts);
    d["adjoints"] = row.adjoints;
    rows.append(d);
  }
  return rows;
}

using Class = py::class_<Builder>;

void bind_sources(Class& c) {
  c.def("input", &input, py::arg("name"), py::arg("shape"), py::arg("dtype"), py::arg("library") = "numpy",
        py::arg("device") = "cpu", py::arg("captured") = false, py::arg("strides") = Extents{},
        R"(input(self, name, shape, dtype, library='numpy', device='cpu', captured=False, strides=())
--

An argument of the function, or an array that it captured. strides are in elements, none for C order.
)");
  c.def("scalar", &scalar, py::arg("value"), py::arg("parameter") = -1, R"(scalar(self, value, parameter=-1)
--

A Python bool, int or float: it takes the dtype of what it meets (NEP 50). parameter is the number of the function's
float argument that a float is, 0 to 63: executors take its value when they run; -1 for a value that stays. OverflowError for an int beyond 64 bits.
)");
  c.def("integer_parameter", &Builder::integer_parameter, py::arg("parameter"),
        R"(integer_parameter(self, parameter)
--

The int64 that the function's float argument of that number is.
)");
  c.def(
      "iota",
      [](Builder& g, Extents shape, int axis, const std::string& dtype, const std::string& library) {
        return g.iota(std::move(shape), axis, read_dtype(dtype), read_library(library));
      },
      py::arg("shape"), py::arg("axis"), py::arg("dtype"), py::arg("library") = "numpy",
      R"(iota(self, shape, axis, dtype, library='numpy')
--

0, 1, 2, ... along one axis of an array of that shape.
)");
}

void bind_ops(Class& c) {
  c.def(
      "map", [](Builder& g, const std::string& op, NodeIds a) { return g.map(read_op(op), std::move(a)); },
      py::arg("op"), py::arg("arguments"), R"(map(self, op, arguments)
--

An elementwise op of op_table() on nodes, after promotion and broadcasting.
)");
  c.def(
      "cast",
      [](Builder& g, NodeId x, const std::string& dtype, bool rounds) { return g.cast(x, read_dtype(dtype), rounds); },
      py::arg("x"), py::arg("dtype"), py::arg("rounds") = false, R"(cast(self, x, dtype, rounds=False)
--

The same values in another dtype. Within a stage, results in a half type are rounded where they are stored; those of a
cast that rounds, wherever they are read.
)");
  c.def(
      "reduce",
      [](Builder& g, const std::string& op, NodeId x, std::optional<AxisList> axes, bool keepdims) {
        return g.reduce(read_op(op), x, std::move(axes), keepdims);
      },
      py::arg("op"), py::arg("x"), py::arg("axes").none(true), py::arg("keepdims") = false,
      R"(reduce(self, op, x, axes, keepdims=False)
--

A reduction of op_table() over some axes (negative ones count from the end), or over the whole array (None).
)");
  c.def("matmul", &Builder::matmul, py::arg("a"), py::arg("b"),
        "matmul(self, a, b)\n--\n\nnumpy.matmul: 1-D arguments and leading axes as there.\n");
  c.def("conv2d", &conv2d, py::arg("x"), py::arg("w"), py::arg("stride") = Pair{1, 1}, py::arg("padding") = Pair{0, 0},
        py::arg("dilation") = Pair{1, 1}, py::arg("groups") = 1,
        R"(conv2d(self, x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
--

x (N, C, H, W), w (O, C / groups, R, S); H becomes floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1.
)");
  c.def("take", &Builder::take, py::arg("x"), py::arg("indices"), py::arg("axis"), py::arg("nonnegative") = false,
        R"(take(self, x, indices, axis, nonnegative=False)
--

Elements of x at integer positions along one axis, as numpy.take. nonnegative: negative ones are out of bounds.
)");
  c.def("take_along_axis", &Builder::take_along_axis, py::arg("x"), py::arg("indices"), py::arg("axis"),
        py::arg("nonnegative") = false, R"(take_along_axis(self, x, indices, axis, nonnegative=False)
--

Elements of x, each at a position of its own along one axis, as numpy.take_along_axis.
)");
  c.def("library_call", &library_call, py::arg("arguments"), py::arg("results"), py::arg("function"), py::arg("number"),
        py::arg("flops") = 0, R"(library_call(self, arguments, results, function, number, flops=0)
--

What a function of the array library computes: a list of nodes, one for each of results, which are (dtype, shape) pairs.
function names it for people; number tells functions of one trace apart; flops are those of its products.
)");
  c.def(
      "library_alternative",
      [](Builder& g, const NodeIds& arguments, NodeId result, const std::string& function, std::int64_t number,
         StageId first_stage, const AxisList& order) {
        LibraryCallAttributes call;
        call.function = function;
        call.number = number;
        g.library_alternative(std::move(call), arguments, result, first_stage, order);
      },
      py::arg("arguments"), py::arg("result"), py::arg("function"), py::arg("number"), py::arg("first_stage"),
      py::arg("order") = AxisList{},
      R"(library_alternative(self, arguments, result, function, number, first_stage, order=[])
--

Says that a function of the array library computes result of arguments, too: plans that are to run take it where it is
predicted to be faster than the nodes of the stages from first_stage on. It gives result's axes in an order, if any.
)");
  c.def(
      "stages", [](const Builder& g) { return g.graph().stages.size(); },
      "stages(self)\n--\n\nThe number of stages by now.\n");
  c.def("concatenate", &Builder::concatenate, py::arg("parts"), py::arg("axis"),
        "concatenate(self, parts, axis)\n--\n\nNodes behind each other along one axis, after promotion.\n");
}

void bind_views(Class& c) {
  c.def("transpose", &Builder::transpose, py::arg("x"), py::arg("axes"),
        "transpose(self, x, axes)\n--\n\nAxis i of the result is axis axes[i] of x.\n");
  c.def("reshape", &Builder::reshape, py::arg("x"), py::arg("shape"),
        "reshape(self, x, shape)\n--\n\nOther extents in C order; one may be -1.\n");
  c.def("slice", &slice, py::arg("x"), py::arg("slices"), R"(slice(self, x, slices)
--

Elements range(start, stop, step) of each axis; slice.indices(extent) gives the three (stop = -1 is before the first).
)");
  c.def("broadcast", &Builder::broadcast, py::arg("x"), py::arg("shape"),
        "broadcast(self, x, shape)\n--\n\nnumpy.broadcast_to.\n");
}

void bind_frame(Class& c) {
  c.def("begin_stage", &Builder::begin_stage, py::arg("name"), py::arg("source") = "",
        R"(begin_stage(self, name, source='')
--

Nodes made until the matching end_stage are one stage: one kernel when nothing is fused. Within an open stage, the
outermost name holds. Without one, each call is a stage of its own.
)");
  c.def("end_stage", &Builder::end_stage, "end_stage(self)\n--\n\nEnds what the last begin_stage began.\n");
  c.def("set_source", &Builder::set_source, py::arg("text"),
        "set_source(self, text)\n--\n\nThe source line of stages that do not bring their own.\n");
  c.def("again", &again, py::arg("graph"), py::arg("id"), py::arg("arguments"), py::arg("shape") = py::none(),
        R"(again(self, graph, id, arguments, shape=None)
--

A node of another graph, of other arguments. `shape` are other extents of it, where these do not follow from the
arguments.
)");
  c.def("set_outputs", &set_outputs, py::arg("outputs"),
        "set_outputs(self, outputs)\n--\n\nThe results: (name, node) pairs.\n");
}

void bind_reading(Class& c) {
  c.def(
      "node", [](const Builder& g, NodeId id) { return node_to_dict(node(g, id)); }, py::arg("id"),
      "node(self, id)\n--\n\nA node as in to_dict()[\"nodes\"].\n");
  c.def(
      "shape", [](const Builder& g, NodeId id) { return py::tuple(py::cast(node(g, id).shape)); }, py::arg("id"),
      "shape(self, id)\n--\n\nExtents of a node, a tuple of int.\n");
  c.def(
      "dtype", [](const Builder& g, NodeId id) { return name(node(g, id).dtype); }, py::arg("id"),
      "dtype(self, id)\n--\n\n\"float32\", say.\n");
  c.def(
      "library", [](const Builder& g, NodeId id) { return node(g, id).library == Library::kTorch ? "torch" : "numpy"; },
      py::arg("id"), "library(self, id)\n--\n\nWhose promotion rules the node follows: \"numpy\" or \"torch\".\n");
  c.def("__len__", [](const Builder& g) { return g.graph().nodes.size(); }, "__len__(self)\n--\n\nNumber of nodes.\n");
  c.def("__str__", [](const Builder& g) { return to_text(g.graph()); }, "__str__(self)\n--\n\nOne node a line.\n");
  c.def("__repr__", &repr, "__repr__(self)\n--\n\n");
  c.def(
      "__eq__", [](const Builder& g, const Builder& h) { return g.graph() == h.graph(); }, py::is_operator(),
      "__eq__(self, other)\n--\n\nThe same nodes, stage names and outputs; source lines may differ.\n");
  c.def(
      "hash", [](const Builder& g) { return hash(g.graph()); },
      "hash(self)\n--\n\n64 bits, the same for equal graphs in every process.\n");
}

py::module_ json() { return py::module_::import("kfusion._json"); }

void bind_whole(Class& c) {
  c.def(
      "verify", [](const Builder& g) { verify(g.graph()); },
      "verify(self)\n--\n\nChecks every rule of a graph; ValueError names the node and the rule.\n");
  c.def(
      "simplify", [](const Builder& g, bool across_stages) { return Builder(simplify(g.graph(), across_stages)); },
      py::arg("across_stages") = true, R"(simplify(self, across_stages=True)
--

The same graph without dead nodes, with equal nodes made one (across_stages=False: those of one stage) and views of views
composed. Inputs stay.
)");
  c.def(
      "axis_labels",
      [](const Builder& g) {
        const AxisLabels labels = axis_labels(g.graph());
        return py::make_tuple(labels.of, labels.reduced, labels.whole);
      },
      "axis_labels(self)\n--\n\nBy node the labels of its axes; by node that reduces, those of what it reduces; labels "
      "that\n"
      "cannot be split, each with the first node that needs all of it.\n");
  c.def(
      "to_dict", [](const Builder& g) { return graph_to_dict(g.graph()); },
      "to_dict(self)\n--\n\nPlain dicts, lists and scalars, ready for JSON.\n");
  c.def_static("from_dict", [](py::handle d) { return Builder(graph_from_dict(d)); }, py::arg("d"), R"(from_dict(d)
--

The graph of a to_dict(), which may come from anywhere: ValueError or TypeError where it is not valid.
)");
  c.def(
      "to_json",
      [](const Builder& g, py::object indent) { return json().attr("dumps")(graph_to_dict(g.graph()), indent); },
      py::arg("indent") = py::none(), "to_json(self, indent=None)\n--\n\nto_dict() as text.\n");
  c.def_static(
      "from_json",
      [](py::object text) { return Builder(graph_from_dict(json().attr("loads")(text, "kfusion.Graph"))); },
      py::arg("text"), R"(from_json(text)
--

The graph of a to_json(), which may come from anywhere: ValueError or TypeError where it is not valid.
)");
  c.def(py::pickle([](const Builder& g) { return graph_to_dict(g.graph()); },
                   [](const py::dict& d) { return Builder(graph_from_dict(d)); }));
}

}  // namespace graphs
}  // namespace

void bind_graph(py::module_& m) {
  graphs::Class c(m, "Graph", graphs::kClassDoc);
  c.def(py::init<>(), "__init__(self)\n--\n\nAn empty graph.\n");
  graphs::bind_sources(c);
  graphs::bind_ops(c);
  graphs::bind_views(c);
  bind_gradients(c);
  graphs::bind_frame(c);
  graphs::bind_reading(c);
  graphs::bind_whole(c);
  m.def(
      "behind_axis", [](py::handle n, std::int64_t size) { return node_to_dict(behind_axis(node_from_dict(n), size)); },
      py::arg("node"), py::arg("size"), R"(behind_axis(node, size)
--

What a node of to_dict() would be of arguments with one more axis in front, which goes through to its result.
)");
  m.def("op_table", &graphs::op_rows, "op_table()\n--\n\nThe rows of ops.def, a list of dicts in their order.\n");
}

}  // namespace kfusion
