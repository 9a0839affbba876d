// Kernels as plain dicts: what tests run element by element, and people read.
#include "backends/backends.hpp"
#include "bindings/testing/testing.hpp"
#include "kfusion/enumerators.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/lower/attention.hpp"
#include "kfusion/lower/beside.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/graph_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion::testing {
namespace bind_lower_detail {

constexpr const char* kRequiredDoc = R"(required_strides(graph, device, fuse=True)
--

For each output of the executable plan the strides (in elements) that it must have; an empty list where any will do.
)";

constexpr const char* kLowerDoc = R"(lower(graph, device, fuse=True, output_strides=(), possible=False)
--

The loops that executors run and print.

Args:
    graph: a Graph.
    device: dict of a Device's fields.
    fuse: False for one kernel per stage.
    output_strides: for each output, in elements, how the caller's array lies; nothing, or an empty list, for C order.
    possible: the plan that shows what could be one kernel, whoever runs it; of a graph without empty arrays.

Returns:
    A dict: "graph", the planned graph as Graph.to_dict gives it; "outputs", for each output which node's array it is a
    view of ("base", "offset", "shape", "strides" in elements of the base's C order); "computed", by node the extents in
    which it is stored; "kernels", in the order in which they run: what the fields of a Kernel are, its "text", and
    "nodes" and "stored", those of the graph. A kernel around products has its Contraction's epilogue here, with
    "products" and "axes" (batches, rows, columns, depth). Attention has its "scores" so. A kernel without "steps" is
    another one, which is no loops.
)";

template <class Items, class Make>
py::list list_of(const Items& items, Make make) {
  py::list result;
  for (const auto& item : items) result.append(make(item));
  return result;
}

py::dict to_dict(const Operand& o) {
  using py::literals::operator""_a;
  return py::dict("node"_a = o.node, "dtype"_a = name(o.dtype), "kept"_a = o.kept, "reduced"_a = o.reduced,
                  "offset"_a = o.offset);
}

py::dict to_dict(const Table& t) {
  py::dict d = to_dict(t.from);
  d["step"] = t.stride;
  d["positions"] = t.positions.extent;
  d["nonnegative"] = t.positions.nonnegative;
  return d;
}

py::dict to_dict(const Constant& c) {
  using py::literals::operator""_a;
  const py::object value = is_integer(c.dtype) ? py::object(py::int_(c.integer)) : py::object(py::float_(c.value));
  return py::dict("dtype"_a = name(c.dtype), "value"_a = value, "parameter"_a = c.parameter);
}

py::list names_of(const Idioms& is) {
  const std::pair<const char*, bool> all[] = {{"quick", is.quick},
                                              {"weight", is.weight},
                                              {"row quotient", is.row_quotient},
                                              {"divisor", is.divisor},
                                              {"quick divisor", is.quick_divisor},
                                              {"quick quotient", is.quick_quotient},
                                              {"random block", is.random_block},
                                              {"product", is.products[0] || is.products[1]},
                                              {"one plus tanh", is.tanh >= 0},
                                              {"place", is.place >= 0}};
  py::list names;
  for (const auto& [name, is_one] : all)
    if (is_one) names.append(name);
  return names;
}

py::dict step_dict(const Kernel& k, std::size_t i) {
  using py::literals::operator""_a;
  const Step& s = k.steps[i];
  const int reduces = s.kind == StepKind::kReduce ? 1 : 0;
  return py::dict("kind"_a = enumerator_name(s.kind), "op"_a = name(s.op), "dtype"_a = name(s.dtype),
                  "from"_a = name(s.from), "row"_a = s.level == Level::kRow, "sweep"_a = k.separate.ready[i] - reduces,
                  "paired_sweep"_a = k.paired.ready[i] - reduces, "arguments"_a = s.arguments, "index"_a = s.index,
                  "node"_a = s.node, "idioms"_a = names_of(s.is));
}

py::dict to_dict(const Store& s) {
  using py::literals::operator""_a;
  return py::dict("step"_a = s.step, "to"_a = to_dict(s.to), "parts"_a = s.parts);
}

py::tuple to_tuple(const Pair& p) { return py::make_tuple(name(p.kind), p.first, p.second); }
py::tuple to_tuple(const Pick& p) { return py::make_tuple(p.reduction, p.equal, p.value, p.otherwise); }
py::tuple to_tuple(const Search& s) { return py::make_tuple(s.reduction, s.x, s.number, s.place, s.nan); }
py::tuple to_tuple(const Exponentials& e) { return py::make_tuple(e.exp, e.x, e.divisor); }

py::dict to_dict(const Kernel& k, const Graph& g) {
  const auto dict = [](const auto& item) { return to_dict(item); };
  py::dict d;
  d["name"] = k.name;
  d["kind"] = name(k.kind);
  d["kept"] = k.kept;
  d["reduced"] = k.reduced;
  d["loads"] = list_of(k.loads, dict);
  d["iotas"] = list_of(k.iotas, dict);
  d["tables"] = list_of(k.tables, dict);
  d["constants"] = list_of(k.constants, dict);
  py::list steps;
  for (std::size_t i = 0; i < k.steps.size(); ++i) steps.append(step_dict(k, i));
  d["steps"] = steps;
  d["stores"] = list_of(k.stores, dict);
  const auto tuple = [](const auto& item) { return to_tuple(item); };
  d["pairs"] = list_of(k.pairs, tuple);
  d["picks"] = list_of(k.picks, tuple);
  d["searches"] = list_of(k.searches, tuple);
  d["exponentials"] = list_of(k.exponentials, tuple);
  d["sweeps"] = k.separate.sweeps;
  d["paired_sweeps"] = k.paired.sweeps;
  d["bytes"] = k.bytes();
  d["text"] = to_text(k, g);
  return d;
}

py::dict to_dict(const Factor& f) {
  using py::literals::operator""_a;
  return py::dict("node"_a = f.node, "offset"_a = f.offset, "batch"_a = f.batch, "outer"_a = f.outer,
                  "depth"_a = f.depth);
}

py::dict to_dict(const Contraction& c, const Graph& g) {
  using py::literals::operator""_a;
  py::dict d = to_dict(c.epilogue, g);
  d["axes"] = py::make_tuple(c.batches, c.rows, c.cols, c.depth);
  d["products"] = list_of(c.products, [](const Product& p) {
    return py::dict("node"_a = p.node, "dtype"_a = name(p.dtype), "left"_a = to_dict(p.left),
                    "right"_a = to_dict(p.right));
  });
  return d;
}

/// Whether a group is a Contraction to an executor that can do everything.
bool is_contraction(const Plan& plan, const Group& group) {
  const bool multiplies = group.pattern == Pattern::kMatmul || group.pattern == Pattern::kContractionReduction;
  return multiplies && !why_no_contraction(candidate_of(plan, group),
                                           {.tables = true, .variances = true, .positions = true, .lost_picks = true});
}

/// Products beside one another, as kernels of their own.
void add_beside(const Plan& plan, int index, const Lowering& lowering, py::list& kernels) {
  const std::vector<Chain> chains = chains_of(candidate_of(plan, plan.groups[static_cast<std::size_t>(index)]));
  const std::vector<Contraction> all = lowering.contractions(index);
  for (std::size_t i = 0; i < all.size(); ++i) {
    py::dict kernel = to_dict(all[i], plan.graph);
    kernel["beside"] = index;
    kernel["nodes"] = chains[i].nodes;
    kernel["stored"] = chains[i].stores;
    kernels.append(std::move(kernel));
  }
}

py::dict to_dict(const Access& a) {
  using py::literals::operator""_a;
  return py::dict("base"_a = a.base, "offset"_a = a.offset, "shape"_a = a.shape, "strides"_a = a.strides);
}

Plan plan_of(const GraphBuilder& builder, const py::dict& device, bool fuse) {
  return make_plan(builder.graph(), read_device(device), options_to_run(fuse));
}

OutputStrides required(const GraphBuilder& builder, const py::dict& device, bool fuse) {
  return required_strides(plan_of(builder, device, fuse));
}

py::dict lowered(const GraphBuilder& builder, const py::dict& device, bool fuse, const OutputStrides& outputs,
                 bool possible) {
  PlanOptions options;
  options.fuse = fuse;
  options.executors = possible_executors();
  const Plan plan =
      possible ? make_plan(builder.graph(), read_device(device), options) : plan_of(builder, device, fuse);
  const Lowering lowering(plan, outputs);
  py::list kernels;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const Group& group = plan.groups[i];
    const auto index = static_cast<int>(i);
    if (possible && group.pattern == Pattern::kMatmul && products_beside(candidate_of(plan, group)).size() > 1) {
      add_beside(plan, index, lowering, kernels);
      continue;
    }
    py::dict kernel;
    if (is_loops(group.pattern))
      kernel = to_dict(lowering.kernel(index), plan.graph);
    else if (possible && is_contraction(plan, group))
      kernel = to_dict(lowering.contraction(index), plan.graph);
    else if (group.pattern == Pattern::kAttention && !why_no_attention(candidate_of(plan, group)))
      kernel["scores"] = to_dict(lowering.attention(index).scores, plan.graph);
    kernel["nodes"] = group.nodes;
    kernel["stored"] = group.stores;
    kernels.append(std::move(kernel));
  }
  py::dict d;
  d["graph"] = graph_to_dict(plan.graph);
  d["outputs"] = list_of(plan.graph.outputs,
                         [&](const Output& o) { return to_dict(plan.folded.value[static_cast<std::size_t>(o.node)]); });
  d["kernels"] = kernels;
  d["computed"] = plan.computed;
  return d;
}

}  // namespace bind_lower_detail

void bind_lower(py::module_& m) {
  m.def("required_strides", &bind_lower_detail::required, py::arg("graph"), py::arg("device"), py::arg("fuse") = true,
        bind_lower_detail::kRequiredDoc);
  m.def("lower", &bind_lower_detail::lowered, py::arg("graph"), py::arg("device"), py::arg("fuse") = true,
        py::arg("output_strides") = OutputStrides{}, py::arg("possible") = false, bind_lower_detail::kLowerDoc);
}

}  // namespace kfusion::testing
