// Measured times of kernels: which could be measured, and those that were, for plans that are made from then on.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "bindings/device_dict.hpp"
#include "bindings/gil.hpp"
#include "bindings/measured_times.hpp"
#include "bindings/plan_options.hpp"
#include "bindings/stl.hpp"
#include "cpu/platform.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/prices/traffic.hpp"
#include "kfusion/plan/reports/names.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace tuning_binding {

/// By kernel and executor.
using Times = std::unordered_map<std::string, std::map<std::string, double, std::less<>>>;

class Table final : public Measured {
 public:
  explicit Table(Times times) : times_(std::move(times)) {}

  std::optional<double> us(std::string_view key, std::string_view executor) const override {
    const auto kernel = times_.find(std::string(key));
    if (kernel == times_.end()) return std::nullopt;
    const auto found = kernel->second.find(executor);
    return found == kernel->second.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const Times times_;
};

struct Known {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Measured>> by_device;
  std::atomic<std::uint64_t> generation{0};
};

Known& known = *new Known;  // made when the library is loaded, before anybody can fork

void set_measured(const std::unordered_map<std::string, Times>& by_device) {
  std::unordered_map<std::string, std::shared_ptr<const Measured>> all;
  for (const auto& [device, times] : by_device) all.emplace(device, std::make_shared<Table>(times));
  const std::lock_guard lock(known.mutex);
  known.by_device = std::move(all);
  ++known.generation;
}

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
  options.measured = std::make_shared<Table>(Times{});  // so that kernels have keys
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

std::shared_ptr<const Measured> measured_on(const Device& device) {
  using tuning_binding::known;
  const std::lock_guard lock(known.mutex);
  const auto found = known.by_device.find(device.name);
  return found == known.by_device.end() ? nullptr : found->second;
}

std::uint64_t measured_generation() { return tuning_binding::known.generation.load(std::memory_order_relaxed); }

void bind_tuning(py::module_& m) {
  m.def("set_measured", &tuning_binding::set_measured, py::arg("times"), R"(set_measured(times)
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
