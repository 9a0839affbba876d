#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/names.hpp"
#include "python/fuse/measured_times.hpp"
#include "python/gil.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/graph_dict.hpp"
#include "python/records/plan_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"

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
        "max_outputs" (int) and "executors" (None, "available" or a list of names).

Returns:
    A dict of plain values: "schema", "device", "graph", "unfused_graph", "composites", "groups", "unfused_groups",
    "refusals", "fused", "unfused", "library", "savings" and "predicted_speedup".

Raises:
    ValueError: a device's field or an option is missing, unknown or out of range.
    TypeError: one is of the wrong kind.
)";

constexpr const char* kReasonsDoc = R"(refusal_reasons()
--

Names of all reasons why two neighbours can be in different kernels.
)";

constexpr int kSchema = 3;

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
  PlanPair pair = make_plans(g, device, options);
  PricedPlans plans{std::move(pair.chosen), std::move(pair.unfused), {}, {}, {}};
  check_names(plans.fused.graph, options);
  plans.fused_cost = count(plans.fused, device);
  plans.unfused_cost = count(plans.unfused, device);
  plans.library_cost = pair.library ? count(*pair.library, device) : plans.unfused_cost;
  return plans;
}

py::dict plan_of(const GraphBuilder& builder, const py::dict& device_fields, const py::dict& options_dict) {
  const Device device = read_device(device_fields);
  PlanOptions options = read_options(options_dict, possible_executors());
  options.measured = measured_on(device);
  const PricedPlans plans = [&, copy = builder.graph()] {  // another thread may go on building the graph
    const Interruptible without_gil;
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
