#include <pybind11/stl.h>

#include <set>

#include "bindings/bindings.hpp"
#include "bindings/device.hpp"
#include "bindings/gil.hpp"
#include "bindings/graph_dict.hpp"
#include "bindings/plan_dict.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/names.hpp"

namespace py = pybind11;

namespace kfusion {
namespace bind_plan_detail {

constexpr const char* kMakePlanDoc = R"(make_plan(graph, device, options)
--

Plans a graph into kernels, counts and prices it on a device, next to the same graph with one kernel per stage.

Args:
    graph: a Graph; it is simplified first.
    device: dict of a Device's fields.
    options: dict with any of "fuse" (bool), "allow" and "forbid" (pairs of names: stages, composites, ops), "max_inputs",
        "max_outputs" (int) and "only_executable" (bool).

Returns:
    A dict of plain values: "schema", "device", "graph", "unfused_graph", "composites", "groups", "unfused_groups",
    "refusals", "fused", "unfused", "savings" and "predicted_speedup".

Raises:
    ValueError: a device's field or an option is missing, unknown or out of range.
    TypeError: one is of the wrong kind.
)";

constexpr const char* kReasonsDoc = R"(refusal_reasons()
--

Names of all reasons why two neighbours can be in different kernels.
)";

constexpr const char* kWho = "kfusion.plan: ";
constexpr int kSchema = 1;

bool read_flag(const std::string& name, py::handle value) {
  if (!PyBool_Check(value.ptr()))
    throw TypeError(kWho + name + " must be a bool, got " + Py_TYPE(value.ptr())->tp_name);
  return value.ptr() == Py_True;
}

int read_limit(const std::string& name, py::handle value) {
  if (!PyLong_CheckExact(value.ptr())) throw TypeError(kWho + name + " must be an int");
  int overflow = 0;
  const long n = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || n < 1 || n > INT32_MAX) throw ValueError(kWho + name + " must be at least 1");
  return static_cast<int>(n);
}

std::vector<std::pair<std::string, std::string>> read_pairs(const std::string& name, py::handle value) {
  try {
    return value.cast<std::vector<std::pair<std::string, std::string>>>();
  } catch (const py::cast_error&) {
    throw TypeError(kWho + name + " must be pairs of names");
  }
}

PlanOptions read_options(const py::dict& options) {
  PlanOptions result;
  for (const auto& [key, value] : options) {
    const auto name = py::str(key).cast<std::string>();
    if (name == "fuse")
      result.fuse = read_flag(name, value);
    else if (name == "only_executable")
      result.only_executable = read_flag(name, value);
    else if (name == "allow")
      result.allow = read_pairs(name, value);
    else if (name == "forbid")
      result.forbid = read_pairs(name, value);
    else if (name == "max_inputs")
      result.max_inputs = read_limit(name, value);
    else if (name == "max_outputs")
      result.max_outputs = read_limit(name, value);
    else
      throw ValueError(kWho + ("there is no option " + name));
  }
  return result;
}

/// Refuses names that nothing in the graph has: such a pair would silently do nothing.
void check_names(const Graph& g, const char* option, const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::set<std::string> known;
  if (!pairs.empty())
    for (const Node& n : g.nodes)
      if (n.stage >= 0) {
        const std::string& stage = g.stages[static_cast<std::size_t>(n.stage)].name;
        known.insert({std::string(name(n.op)), stage, composite_of(stage)});
      }
  for (const auto& [a, b] : pairs)
    for (const std::string& text : {a, b})
      if (!known.contains(text)) throw ValueError(kWho + (option + (": there is no call or op '" + text + "'")));
}

/// A large plan is many small dicts, none of them garbage: Python's cycle collector would look at them again and again.
class CollectorPause {
 public:
  CollectorPause() = default;
  ~CollectorPause() {
    if (was_on_) PyGC_Enable();
  }
  CollectorPause(const CollectorPause&) = delete;
  CollectorPause& operator=(const CollectorPause&) = delete;

 private:
  const bool was_on_ = PyGC_Disable() == 1;
};

PricedPlans priced_plans(const Graph& g, const Device& device, const PlanOptions& options) {
  PlanOptions unfused = options;
  unfused.fuse = false;
  PricedPlans plans{make_plan(g, device, options), make_plan(g, device, unfused), {}, {}};
  check_names(plans.fused.graph, "allow", options.allow);
  check_names(plans.fused.graph, "forbid", options.forbid);
  plans.fused_cost = count(plans.fused, device);
  plans.unfused_cost = count(plans.unfused, device);
  return plans;
}

py::dict plan_of(const GraphBuilder& builder, const py::dict& device_fields, const py::dict& options_dict) {
  const Device device = read_device(device_fields);
  const PlanOptions options = read_options(options_dict);
  const PricedPlans plans = [&, copy = builder.graph()] {  // another thread may go on building the graph
    const ReleaseGil without_gil;
    return priced_plans(copy, device, options);
  }();
  const CollectorPause pause;
  py::dict d = to_dict(plans, device);
  d["schema"] = kSchema;
  d["device"] = device_fields;
  d["graph"] = graph_to_dict(plans.fused.graph);
  d["unfused_graph"] = graph_to_dict(plans.unfused.graph);
  return d;
}

py::list reasons() {
  py::list names;
  for (int i = 0; i <= static_cast<int>(Reason::kUnfused); ++i) names.append(name(static_cast<Reason>(i)));
  return names;
}

}  // namespace bind_plan_detail

void bind_plan(py::module_& m) {
  m.def("make_plan", &bind_plan_detail::plan_of, py::arg("graph"), py::arg("device"), py::arg("options"),
        bind_plan_detail::kMakePlanDoc);
  m.def("refusal_reasons", &bind_plan_detail::reasons, bind_plan_detail::kReasonsDoc);
}

}  // namespace kfusion
