// What makes a graph valid. Rules stand in an order in which each may rely on those before it.
#include <algorithm>

#include "kfusion/error.hpp"
#include "kfusion/graph/constant.hpp"
#include "kfusion/graph/fields.hpp"
#include "kfusion/graph/graph.hpp"
#include "kfusion/graph/promotion.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

bool is_source(const Node& n) { return kind(n.op) == OpKind::kSource; }

bool arguments_come_first(const Graph& g, const Node& n) {
  const auto id = &n - g.nodes.data();
  return std::ranges::all_of(n.arguments, [&](NodeId a) { return a >= 0 && a < id; });
}

bool has_its_arguments(const Node& n) {
  const auto count = std::ssize(n.arguments);
  const bool any = kind(n.op) == OpKind::kJoin || n.op == Op::library_call;
  return any ? count >= info(n.op).arity : count == info(n.op).arity;
}

bool bounded(const Graph&, const Node& n) {
  require_bounded("shape", n.shape, n.dtype);
  return true;
}

bool short_name(const Graph&, const Node& n) {
  const auto* input = std::get_if<InputAttributes>(&n.attributes);
  if (const auto* call = std::get_if<LibraryCallAttributes>(&n.attributes))
    return call->function.size() <= kMaxTextBytes;
  return !input || input->name.size() <= kMaxTextBytes;
}

bool strides_fit(const Graph&, const Node& n) {
  const auto* input = std::get_if<InputAttributes>(&n.attributes);
  return !input || input->strides.empty() || input->strides.size() == n.shape.size();
}

bool parameter_is_float(const Graph&, const Node& n) {
  const auto* constant = std::get_if<ConstantAttributes>(&n.attributes);
  return !constant || constant->parameter == -1 || (constant->parameter >= 0 && constant->parameter < kMaxDims);
}

bool stage_exists(const Graph& g, const Node& n) {
  return is_source(n) ? n.stage == -1 : n.stage >= 0 && n.stage < std::ssize(g.stages);
}

bool reads_no_scalar(const Graph& g, const Node& n) {
  return std::ranges::none_of(n.arguments, [&](NodeId a) { return is_weak(g[a]); });
}

bool constant_is_plain(const Graph&, const Node& n) {
  if (!is_constant(n)) return true;
  return n.shape.empty() && n.place == Place{} && n.library == Library::kNumpy &&
         is_representable(std::get<ConstantAttributes>(n.attributes), n.dtype);
}

bool only_half_types_are_wide(const Graph&, const Node& n) {
  return !is_constant(n) || !std::get<ConstantAttributes>(n.attributes).wide || is_half(n.dtype);
}

bool scalar_has_python_dtype(const Graph&, const Node& n) {
  return !is_weak(n) || n.dtype == DType::kBool || n.dtype == DType::kInt64 || n.dtype == DType::kFloat64;
}

bool axis_exists(int axis, const Extents& shape) { return axis >= 0 && axis < std::ssize(shape); }

bool iota_has_axis(const Graph&, const Node& n) {
  if (n.op != Op::iota) return true;
  return axis_exists(std::get<IotaAttributes>(n.attributes).axis, n.shape) && n.dtype != DType::kBool &&
         n.place.on_host();
}

bool reduce_axes_ascend(const Graph& g, const Node& n) {
  const auto* reduce = std::get_if<ReduceAttributes>(&n.attributes);
  if (!reduce) return true;
  const Extents& x = g[n.arguments[0]].shape;
  const auto& axes = reduce->axes;
  return !axes.empty() && axes.front() >= 0 && axes.back() < std::ssize(x) &&
         std::ranges::adjacent_find(axes, std::greater_equal{}) == axes.end() &&
         (!reduce->whole || axes.size() == x.size());
}

bool transpose_permutes(const Graph& g, const Node& n) {
  const auto* transpose = std::get_if<TransposeAttributes>(&n.attributes);
  if (!transpose) return true;
  AxisList axes = transpose->axes;
  std::ranges::sort(axes);
  for (std::size_t d = 0; d < axes.size(); ++d)
    if (axes[d] != static_cast<int>(d)) return false;
  return axes.size() == g[n.arguments[0]].shape.size();
}

/// One form for all slices of the same elements.
bool slice_is_plain(const Graph&, const Node& n) {
  const auto* slice = std::get_if<SliceAttributes>(&n.attributes);
  if (!slice) return true;
  if (slice->start.size() != n.shape.size() || slice->step.size() != n.shape.size()) return false;
  for (std::size_t d = 0; d < n.shape.size(); ++d)
    if ((n.shape[d] == 0 && slice->start[d] != 0) || (n.shape[d] <= 1 && slice->step[d] != 1)) return false;
  return true;
}

bool result_has_call(const Graph& g, const Node& n) {
  if (const auto* call = std::get_if<LibraryCallAttributes>(&n.attributes))
    return call->number >= 0 && call->flops >= 0;
  const auto* result = std::get_if<LibraryResultAttributes>(&n.attributes);
  return !result || (result->index >= 1 && g[n.arguments[0]].op == Op::library_call);
}

bool take_has_axis(const Graph& g, const Node& n) {
  const auto* take = std::get_if<TakeAttributes>(&n.attributes);
  return !take || axis_exists(take->axis, g[n.arguments[0]].shape);
}

bool join_has_axis(const Graph& g, const Node& n) {
  const auto* join = std::get_if<JoinAttributes>(&n.attributes);
  return !join || axis_exists(join->axis, g[n.arguments[0]].shape);
}

bool sums_leading_axes(const Graph& g, const Node& n) {
  const auto* partial = std::get_if<PartialAttributes>(&n.attributes);
  return !partial ||
         (partial->axes >= 1 && partial->axes <= std::ssize(g[n.arguments[0]].shape) && partial->parts >= 1);
}

bool dtype_follows(const Graph& g, const Node& n) {
  if (is_source(n) || n.op == Op::cast || kind(n.op) == OpKind::kLibrary) return true;
  std::vector<DType> arguments;
  for (const NodeId a : n.arguments) arguments.push_back(g[a].dtype);
  return result_type(info(n.op), arguments) == n.dtype;
}

bool shape_follows(const Graph& g, const Node& n) { return inferred_shape(g, n) == n.shape; }

/// A value of positions and constants alone, which are NumPy's and on the CPU, can be made for any other.
bool place_follows(const Graph& g, const Node& n) {
  if (is_source(n)) return true;
  const Library library = inferred_library(g, n);
  const Place place = inferred_place(g, n);
  return (library == Library::kNumpy || n.library == library) && (place.on_host() || n.place == place);
}

struct NodeRule {
  const char* sentence;
  bool (*holds)(const Graph&, const Node&);
};

constexpr NodeRule kNodeRules[] = {
    {"its arguments must come before it", arguments_come_first},
    {"it must have as many arguments as its op takes",
     [](const Graph&, const Node& n) { return has_its_arguments(n); }},
    {"its attributes must be those of its op",
     [](const Graph&, const Node& n) { return n.attributes.index() == attributes_of(n.op).index(); }},
    {"its shape must be bounded", bounded},
    {"a name must have at most 10000 bytes", short_name},
    {"an input must have a stride for each axis, or none", strides_fit},
    {"a parameter must be numbered from 0 to 63, -1 where there is none", parameter_is_float},
    {"a source must have no stage, any other node one of the graph's", stage_exists},
    {"it must not read a Python scalar: that becomes a constant of the dtype it meets", reads_no_scalar},
    {"a constant must have no axes and a value of its dtype", constant_is_plain},
    {"only a constant of a half type is wide", only_half_types_are_wide},
    {"a Python scalar must be bool, int64 or float64", scalar_has_python_dtype},
    {"an iota must have its axis, no bools, and be on the CPU", iota_has_axis},
    {"reduced axes must exist and ascend", reduce_axes_ascend},
    {"transposed axes must name each axis once", transpose_permutes},
    {"a slice must have a start and a step for each axis, 0 where it takes nothing, 1 where it takes one",
     slice_is_plain},
    {"the axis taken along must exist", take_has_axis},
    {"a library call must have numbers from 0, a further result of one an index from 1", result_has_call},
    {"the axis joined along must exist", join_has_axis},
    {"partial sums must be along leading axes, in parts", sums_leading_axes},
    {"its arguments must have the dtypes that its op takes, and it the one that its op gives", dtype_follows},
    {"its shape must follow from its arguments", shape_follows},
    {"its library and device must be those of its arguments", place_follows},
};

bool names_are_short(const Graph& g) {
  const auto ok = [](const std::string& text) { return text.size() <= kMaxTextBytes; };
  return std::ranges::all_of(g.stages, [&](const Stage& s) { return ok(s.name) && ok(s.source); }) &&
         std::ranges::all_of(g.outputs, [&](const Output& o) { return ok(o.name); });
}

bool stages_are_used(const Graph& g) {
  std::vector<bool> used(g.stages.size());
  for (const Node& n : g.nodes)
    if (n.stage >= 0) used[static_cast<std::size_t>(n.stage)] = true;
  return std::ranges::find(used, false) == used.end();
}

struct GraphRule {
  const char* sentence;
  bool (*holds)(const Graph&);
};

/// Checked first, and last (after the nodes).
constexpr GraphRule kCounts = {"there must be at most 1000000 nodes, and as many outputs", [](const Graph& g) {
                                 return g.nodes.size() <= kMaxNodes && g.outputs.size() <= kMaxNodes;
                               }};
constexpr GraphRule kGraphRules[] = {
    {"a name or a source must have at most 10000 bytes", names_are_short},
    {"each stage must have a node", stages_are_used},
    {"outputs must be nodes of the graph",
     [](const Graph& g) {
       return std::ranges::all_of(g.outputs,
                                  [&](const Output& o) { return o.node >= 0 && o.node < std::ssize(g.nodes); });
     }},
};

void check(const Graph& g, const GraphRule& rule) {
  if (!rule.holds(g)) throw ValueError(std::string("graph: ") + rule.sentence);
}

void check(const Graph& g, const Node& n, const NodeRule& rule) {
  std::string why;
  try {
    if (rule.holds(g, n)) return;
  } catch (const ValueError& e) {
    why = std::string(" (") + e.what() + ")";
  }
  throw ValueError("graph: node %" + std::to_string(&n - g.nodes.data()) + " (" + std::string(name(n.op)) +
                   "): " + rule.sentence + why);
}

}  // namespace

void verify(const Graph& g) {
  check(g, kCounts);
  for (const Node& n : g.nodes)
    for (const NodeRule& rule : kNodeRules) check(g, n, rule);
  for (const GraphRule& rule : kGraphRules) check(g, rule);
}

}  // namespace kfusion
