#include "python/records/plan_dict.hpp"

#include "kfusion/enumerators.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition/reasons.hpp"
#include "kfusion/plan/views/joins.hpp"
#include "python/records/savings_dict.hpp"

namespace py = pybind11;

namespace kfusion {
namespace plan_dict {

template <class Items, class Make>
py::list list_of(const Items& items, Make make) {
  py::list result;
  for (const auto& item : items) result.append(make(item));
  return result;
}

template <class Items>
py::list list_of(const Items& items) {
  return list_of(items, [](const auto& item) { return py::cast(item); });
}

py::dict to_dict(const Bytes& b) {
  py::dict d;
  d["read"] = b.read;
  d["written"] = b.written;
  return d;
}

py::dict to_dict(const FlopCount& f) {
  py::dict d;
  d["dtype"] = kfusion::name(f.dtype);
  d["unit"] = f.matrix ? "matrix" : "vector";
  d["count"] = f.count;
  return d;
}

/// What a group and a whole plan have in common.
void add_cost(py::dict& d, const Cost& c) {
  d["compulsory"] = to_dict(c.traffic.compulsory);
  d["issued"] = to_dict(c.traffic.issued);
  d["flops"] = list_of(c.traffic.flops, [](const FlopCount& f) { return to_dict(f); });
  d["intensity"] = c.traffic.intensity();
  d["launches"] = c.traffic.launches;
  d["launch_us"] = c.price.launch_us;
  d["memory_us"] = c.price.memory_us;
  d["compute_us"] = c.price.compute_us;
  d["time_us"] = c.price.total_us;
  d["predicted_us"] = c.price.predicted_us;
  d["bound"] = enumerator_name(c.price.bound);
}

/// FLOP/B at which the work that takes longest would be bound by it; 0 without work.
double ridge(const Traffic& t, const Device& device) {
  double longest = 0, result = 0;
  for (const FlopCount& f : t.flops) {
    const double seconds = f.work / peak_flops(device, f.dtype, f.matrix);
    if (seconds > longest) result = ridge_point(device, f.dtype, f.matrix);
    longest = std::max(longest, seconds);
  }
  return result;
}

/// A plan with the names of its parts.
struct Named {
  explicit Named(const Plan& p) : plan(p), values(value_names(p.graph)), labels(p.graph) {}

  const std::string& stage(StageId s) const { return plan.graph.stages[at(s)].name; }

  const Plan& plan;
  std::vector<std::string> values;
  Labels labels;
};

py::dict to_dict(const Load& load, const Named& named) {
  py::dict d;
  d["value"] = named.values[at(load.access.base)];
  d["node"] = load.access.base;
  d["shape"] = list_of(load.access.shape);
  d["strides"] = list_of(load.access.strides);
  d["offset"] = load.access.offset;
  d["gathered"] = load.access.has_positions();
  d["every_sweep"] = load.every_sweep;
  return d;
}

py::dict store_dict(NodeId id, const Named& named) {
  const Node& n = named.plan.graph[id];
  py::dict d;
  d["value"] = named.values[at(stored_in(named.plan.folded, id))];
  d["node"] = id;
  d["shape"] = list_of(named.plan.computed[at(id)]);
  d["dtype"] = kfusion::name(n.dtype);
  return d;
}

py::dict to_dict(const Group& group, std::size_t id, const Named& named, const Cost& cost, const Device& device) {
  const Graph& g = named.plan.graph;
  const std::vector<StageId> stages = stages_of(g, group);
  py::dict d;
  d["id"] = id;
  d["kind"] = name(group.pattern);
  d["label"] = named.labels.of(stages);
  d["ops"] = list_of(group.nodes, [&](NodeId n) { return py::cast(name(g[n].op)); });
  d["stages"] = list_of(stages, [&](StageId s) { return py::cast(named.stage(s)); });
  d["nodes"] = list_of(group.nodes);
  d["views"] = list_of(group.views);
  d["deferred"] = list_of(group.deferred);
  d["domain"] = list_of(group.domain);
  d["reduced"] = list_of(group.reduced);
  d["rows"] = group.rows();
  d["cols"] = group.cols();
  d["loads"] = list_of(group.loads, [&](const Load& load) { return to_dict(load, named); });
  d["stores"] = list_of(group.stores, [&](NodeId n) { return store_dict(n, named); });
  d["passes"] = group.passes;
  d["row_on_chip"] = group.row_on_chip;
  d["executor"] = group.executor ? group.executor->name() : "";
  d["missing"] = group.missing;
  d["measured"] = cost.price.measured;
  d["how"] = group.executor ? group.executor->how(named.plan, group, device) : "";
  add_cost(d, cost);
  d["ridge"] = ridge(cost.traffic, device);
  return d;
}

py::list groups(const Named& named, const PlanCost& cost, const Device& device) {
  py::list result;
  for (std::size_t i = 0; i < cost.groups.size(); ++i)
    result.append(to_dict(named.plan.groups[i], i, named, cost.groups[i], device));
  return result;
}

py::dict to_dict(const Refusal& r, const Named& named) {
  const auto source = [&](NodeId n) {  // an input has none
    const StageId s = named.plan.graph[n].stage;
    return s < 0 ? std::string() : named.plan.graph.stages[at(s)].source;
  };
  py::dict d;
  d["producer"] = label(named.plan.graph, r.producer);
  d["consumer"] = label(named.plan.graph, r.consumer);
  d["producer_node"] = r.producer;
  d["consumer_node"] = r.consumer;
  d["producer_group"] = r.producer_group;
  d["consumer_group"] = r.consumer_group;
  d["reason"] = name(r.reason);
  d["sentence"] = r.sentence;
  d["producer_source"] = source(r.producer);
  d["consumer_source"] = source(r.consumer);
  return d;
}

py::dict composites(const Named& named) {
  py::dict d;
  for (const auto& [composite, stages] : named.labels.composites())
    d[py::str(composite)] = list_of(stages, [&](StageId s) { return py::cast(named.stage(s)); });
  return d;
}

py::dict totals(const PlanCost& cost) {
  py::dict d;
  add_cost(d, cost.total);
  d["peak_intermediate_bytes"] = cost.peak_intermediate_bytes;
  return d;
}

double speedup(const PricedPlans& plans) {
  const double fused_us = plans.fused_cost.total.price.total_us;
  return fused_us > 0 ? plans.unfused_cost.total.price.total_us / fused_us : 1;
}

}  // namespace plan_dict

py::dict to_dict(const PricedPlans& plans, const Device& device) {
  const plan_dict::Named fused(plans.fused), unfused(plans.unfused);
  py::dict d;
  d["composites"] = plan_dict::composites(fused);
  d["groups"] = plan_dict::groups(fused, plans.fused_cost, device);
  d["unfused_groups"] = plan_dict::groups(unfused, plans.unfused_cost, device);
  d["refusals"] = plan_dict::list_of(plans.fused.refusals, [&](const auto& r) { return plan_dict::to_dict(r, fused); });
  d["fused"] = plan_dict::totals(plans.fused_cost);
  d["unfused"] = plan_dict::totals(plans.unfused_cost);
  d["library"] = plan_dict::totals(plans.library_cost);
  d["savings"] = to_dict(savings(plans.unfused_cost, plans.fused_cost), plans.fused.groups.empty());
  d["predicted_speedup"] = plan_dict::speedup(plans);
  return d;
}

}  // namespace kfusion
