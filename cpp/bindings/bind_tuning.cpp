// Measured times of kernels: which could be measured, and those that were, for plans that are made from then on.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/prices/traffic.hpp"
#include "python/fuse/measured_times.hpp"
#include "python/gil.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace tuning_binding {

/// A kernel that several could run, or that stands in one of several plans.
struct Choice {
  std::string key, label;
  Graph graph;
  std::vector<std::pair<std::string, double>> executors;  ///< with what is predicted
};

double predicted_us(Plan plan, std::size_t group, const Executor* executor, const Device& device) {
  plan.groups[group].executor = executor;
  return count_in_place(plan, device).groups[group].price.predicted_us;
}

Choice choice_of(const Plan& plan, std::size_t i, const Labels& labels, const Executors& able, const Device& device) {
  const Group& group = plan.groups[i];
  Choice c{group.key, labels.of(stages_of(plan.graph, group)), *alone(plan, group), {}};
  for (const Executor* e : able) c.executors.emplace_back(e->name(), predicted_us(plan, i, e, device));
  return c;
}

std::vector<Choice> choices(const Graph& g, const Device& device, const PlanOptions& options) {
  const std::vector<Plan> plans = rival_plans(g, device, options);
  std::map<std::string, std::size_t> plans_with;  // by key
  for (const Plan& plan : plans) {
    std::set<std::string> keys;
    for (const Group& group : plan.groups) keys.insert(group.key);
    for (const std::string& key : keys) ++plans_with[key];
  }
  std::vector<Choice> found;
  for (const Plan& plan : plans) {
    const Labels labels(plan.graph);
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      const std::string& key = plan.groups[i].key;
      if (key.empty() || std::ranges::any_of(found, [&](const Choice& c) { return c.key == key; })) continue;
      const Executors able = able_executors(options.executors, candidate_of(plan, plan.groups[i]), device);
      if (able.size() > 1 || (able.size() == 1 && plans_with[key] < plans.size()))
        found.push_back(choice_of(plan, i, labels, able, device));
    }
  }
  return found;
}

py::list tuning_choices(const GraphBuilder& builder, const py::dict& device_fields, const py::dict& options_dict) {
  const Device device = read_device(device_fields);
  PlanOptions options = read_options(options_dict, available_executors());
  options.measured = measured_nothing();  // so that kernels have keys
  const std::vector<Choice> found = [&, copy = builder.graph()] {
    const Interruptible without_gil;
    return choices(copy, device, options);
  }();
  py::list result;
  for (const Choice& c : found) {
    py::dict d, predicted;
    for (const auto& [name, us] : c.executors) predicted[py::str(name)] = us;
    d["key"] = c.key;
    d["label"] = c.label;
    d["graph"] = GraphBuilder(c.graph);
    d["predicted_us"] = predicted;
    result.append(d);
  }
  return result;
}

}  // namespace tuning_binding
}  // namespace

void bind_tuning(py::module_& m) {
  m.def("set_measured", &set_measured, py::arg("times"), R"(set_measured(times)
--

What kernels took: plans that are made from now on choose by it, and functions plan again what they have planned.

Args:
    times: by device's name, kernel's key and executor: microseconds. What was known before is forgotten.
)");
  m.def("tuning_choices", &tuning_binding::tuning_choices, py::arg("graph"), py::arg("device"), py::arg("options"),
        R"(tuning_choices(graph, device, options)
--

The kernels about which plans of a graph have a choice: several executors run them, or not all plans have them.

Args:
    graph: a Graph, as a function was traced.
    device: dict of a Device's fields.
    options: as for make_plan.

Returns:
    A list of dicts: "key" (the same for kernels that do the same), "label", "graph" (the kernel as a function of its
    own) and "predicted_us" (by executor).
)");
}

}  // namespace kfusion
