#include "kfusion/plan/prices/traffic.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "kfusion/checked.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

// ---- bytes ----------------------------------------------------------------------------------------------------------

/// The elements of `a` as a set: two accesses that differ in repetition, direction or order of axes become equal.
Access as_set(const Access& a) {
  Access r{a.base, a.base_size, {}, {}, a.offset, a.positions, a.step};
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.strides[i] == 0 && a.shape[i] > 0) continue;
    if (a.strides[i] < 0) r.offset += a.strides[i] * (a.shape[i] - 1);
    axes.emplace_back(std::abs(a.strides[i]), a.shape[i]);
  }
  std::sort(axes.begin(), axes.end(), std::greater<>());
  for (const auto& [stride, extent] : axes) {
    r.strides.push_back(stride);
    r.shape.push_back(extent);
  }
  return collapsed(r);
}

/// Values outside the group, and views of them, that a reduction of the group depends on.
std::set<NodeId> reduced_values(const Graph& g, const Group& group) {
  std::set<NodeId> found;
  for (auto n = group.nodes.rbegin(); n != group.nodes.rend(); ++n) {
    if (kind(g[*n].op) != OpKind::kReduce && !found.contains(*n)) continue;
    for (NodeId a : g[*n].arguments) {
      found.insert(a);
      while (kind(g[a].op) == OpKind::kView) found.insert(a = g[a].arguments[0]);
    }
  }
  return found;
}

/// One entry per value. Distinct bytes: each access that touches other elements is added up, to at most the whole
/// value; those at positions that are read may all be others. Issued: a value as large as the domain is read in every
/// sweep where rows do not stay on chip, if a reduction needs it (else it is only needed in the last one); rows'
/// statistics and parameters are small and counted once. Operands of products count once: their tiles are read again
/// from the cache.
std::vector<Read> reads_of(const Graph& g, const Group& group) {
  std::map<NodeId, std::vector<const Load*>> loads;
  for (const Load& l : group.loads) loads[l.access.base].push_back(&l);
  const bool sweeps = group.passes > 1 && !group.row_on_chip;
  const std::set<NodeId> reduced = sweeps ? reduced_values(g, group) : std::set<NodeId>{};
  std::vector<Read> reads;
  for (const auto& [base, accesses] : loads) {
    std::vector<Access> sets;
    std::int64_t elements = 0, passes = 1;
    for (const Load* l : accesses) {
      if (l->every_sweep && reduced.contains(base)) passes = group.passes;
      const Access set = as_set(l->access);
      const bool seen = std::find(sets.begin(), sets.end(), set) != sets.end();
      if (seen && !set.has_positions()) continue;
      sets.push_back(set);
      elements = std::min(checked_add(elements, distinct_elements(l->access)), g[base].size());
    }
    const std::int64_t bytes = elements * static_cast<std::int64_t>(item_bytes(g[base].dtype));
    reads.push_back({base, bytes, checked_multiply(bytes, passes)});
  }
  return reads;
}

void add(Bytes& to, const Bytes& b) {
  to.read = checked_add(to.read, b.read);
  to.written = checked_add(to.written, b.written);
  checked_add(to.read, to.written);  // so that total() does not wrap
}

// ---- FLOPs ----------------------------------------------------------------------------------------------------------

/// The result of the group's last reduction: deferred maps run once for each of its elements.
std::int64_t reduced_size(const Graph& g, const Group& group) {
  const auto last = std::find_if(group.nodes.rbegin(), group.nodes.rend(),
                                 [&](NodeId n) { return kind(g[n].op) == OpKind::kReduce; });
  return g[*last].size();
}

bool contains(const std::vector<NodeId>& nodes, NodeId n) {
  return std::find(nodes.begin(), nodes.end(), n) != nodes.end();
}

/// By entry of group.nodes: how many elements of it the kernel computes. A broadcast value is computed as often as its
/// readers, but for a row's values, which loops compute once for each row.
std::vector<std::int64_t> times_of(const Plan& p, const Group& group, const Device& device) {
  const Graph& g = p.graph;
  Axes reduced = 0;
  for (const int axis : group.reduced) reduced |= axis_bit(at(axis));
  const auto is_of_row = [&](std::size_t i) {
    return is_loops(group.pattern) && reduced != 0 && (group.spans[i] & reduced) == 0;
  };
  std::vector<std::int64_t> times;
  for (std::size_t i = 0; i < group.nodes.size(); ++i) {
    const NodeId n = group.nodes[i];
    times.push_back(contains(group.deferred, n) ? reduced_size(g, group) : is_of_row(i) ? group.rows() : g[n].size());
  }
  for (std::size_t i = group.nodes.size(); i-- > 0;) {
    const Work& work = p.folded.work[at(group.nodes[i])];
    if (work.kind == WorkKind::kContraction || work.kind == WorkKind::kLibrary) continue;
    for (const Access& a : work.reads) {
      const auto read = std::ranges::lower_bound(group.nodes, a.base);
      if (read == group.nodes.end() || *read != a.base) continue;
      const auto k = static_cast<std::size_t>(read - group.nodes.begin());
      const std::int64_t needed = is_pointwise(work.kind) ? times[i] : product(a.shape);
      if (!is_of_row(k) && !contains(group.deferred, a.base)) times[k] = std::max(times[k], needed);
    }
  }
  if (device.is_cpu && group.pattern == Pattern::kColumns) {
    const std::vector<int> sweeps = sweeps_over_columns(p.folded, group.nodes, group.stores);
    for (std::size_t i = 0; i < times.size(); ++i)
      if (!is_of_row(i)) times[i] = checked_multiply(times[i], sweeps[i], "operations");
  }
  return times;
}

void add(std::vector<FlopCount>& to, const FlopCount& f) {
  if (f.count == 0) return;
  const auto same = std::find_if(to.begin(), to.end(),
                                 [&](const FlopCount& t) { return t.dtype == f.dtype && t.matrix == f.matrix; });
  if (same == to.end()) {
    to.push_back(f);
  } else {
    same->count = checked_add(same->count, f.count, "operations");
    same->work += f.work;
  }
}

// ---- a kernel, and all of them --------------------------------------------------------------------------------------

Traffic traffic_of(const Plan& plan, const Group& group, const std::vector<Read>& reads, const Device& device) {
  const Graph& g = plan.graph;
  Traffic t;
  for (const Read& r : reads) {
    add(t.compulsory, {r.bytes, 0});
    add(t.issued, {r.issued_bytes, 0});
  }
  for (const NodeId n : group.stores) {
    const Bytes stored{0, g[n].nbytes()};
    add(t.compulsory, stored);
    add(t.issued, stored);
    if (g[n].size() > 0) t.launches = 1;  // empty arrays launch nothing
  }
  const std::vector<std::int64_t> times = times_of(plan, group, device);
  for (std::size_t i = 0; i < group.nodes.size(); ++i) add(t.flops, flops_of(g, group.nodes[i], times[i], device));
  return t;
}

void add(Cost& to, const Cost& c) {
  add(to.traffic.compulsory, c.traffic.compulsory);
  add(to.traffic.issued, c.traffic.issued);
  for (const FlopCount& f : c.traffic.flops) add(to.traffic.flops, f);
  to.traffic.launches += c.traffic.launches;
  to.price.launch_us += c.price.launch_us;
  to.price.memory_us += c.price.memory_us;
  to.price.compute_us += c.price.compute_us;
  to.price.total_us += c.price.total_us;
  to.price.predicted_us += c.price.predicted_us;
}

/// The stored values that outputs are, or are views of.
std::vector<bool> returned_values(const Plan& p) {
  std::vector<bool> stored(p.graph.nodes.size()), returned(p.graph.nodes.size());
  for (const Group& group : p.groups)
    for (const NodeId n : group.stores) stored[at(stored_in(p.folded, n))] = true;
  for (const Output& o : p.graph.outputs) {
    NodeId n = o.node;
    while (!stored[at(n)] && kind(p.graph[n].op) == OpKind::kView) n = p.graph[n].arguments[0];
    returned[at(n)] = true;
  }
  return returned;
}

/// A value lives from the kernel that stores it to the last that reads it; results that the caller gets do not count.
std::int64_t peak_intermediate_bytes(const Plan& p) {
  std::vector<int> last_reader(p.graph.nodes.size(), -1);
  for (std::size_t i = 0; i < p.groups.size(); ++i)
    for (const Load& l : p.groups[i].loads) last_reader[at(l.access.base)] = static_cast<int>(i);
  const std::vector<bool> returned = returned_values(p);
  std::vector<std::int64_t> freed(p.groups.size());
  std::int64_t live = 0, peak = 0;
  for (std::size_t i = 0; i < p.groups.size(); ++i) {
    for (const NodeId n : p.groups[i].stores) {
      const std::size_t value = at(stored_in(p.folded, n));
      if (last_reader[value] < 0 || returned[value]) continue;
      live = checked_add(live, p.graph[n].nbytes());
      freed[at(last_reader[value])] += p.graph[n].nbytes();
    }
    peak = std::max(peak, live);
    live -= freed[i];
  }
  return peak;
}

/// While it lives, each node has the shape that it is computed in.
class ComputedShapes {
 public:
  explicit ComputedShapes(Plan& plan) : plan_(plan) { swap(); }
  ~ComputedShapes() { swap(); }
  ComputedShapes(const ComputedShapes&) = delete;
  ComputedShapes& operator=(const ComputedShapes&) = delete;

 private:
  void swap() {
    for (std::size_t n = 0; n < plan_.computed.size(); ++n) std::swap(plan_.graph.nodes[n].shape, plan_.computed[n]);
  }

  Plan& plan_;
};

}  // namespace

std::int64_t Traffic::flop_total() const {
  std::int64_t total = 0;
  for (const FlopCount& f : flops) total = checked_add(total, f.count, "operations");
  return total;
}

double Traffic::intensity() const {
  const std::int64_t bytes = compulsory.total();
  return bytes == 0 ? 0 : static_cast<double>(flop_total()) / static_cast<double>(bytes);
}

PlanCost count(const Plan& plan, const Device& d) {
  Plan copy = plan;
  return count_in_place(copy, d);
}

PlanCost count_in_place(Plan& plan, const Device& d) {
  const ComputedShapes computed(plan);
  const Plan& p = plan;
  PlanCost c;
  Pricer pricer(p, d);
  for (const Group& group : p.groups) {
    const std::vector<Read> reads = reads_of(p.graph, group);
    const Traffic traffic = traffic_of(p, group, reads, d);
    c.groups.push_back({traffic, pricer.price(group, traffic, reads)});
    add(c.total, c.groups.back());
  }
  c.total.price.bound = bound_of(c.total.price);
  c.peak_intermediate_bytes = peak_intermediate_bytes(p);
  return c;
}

std::vector<std::string> values_computed_again(const Plan& plan, const Device& d) {
  const Graph& g = plan.graph;
  std::multimap<double, std::string, std::greater<>> found;  // by the time that computing again takes
  for (const Group& group : plan.groups) {
    if (!is_loops(group.pattern)) continue;  // executors of products price what they compute beside them
    const std::vector<std::int64_t> times = times_of(plan, group, d);
    double us = 0;
    std::vector<NodeId> again;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const NodeId n = group.nodes[i];
      if (times[i] <= g[n].size() || !is_pointwise(plan.folded.work[at(n)].kind)) continue;
      us += us_of(flops_of(g, n, times[i], d), d) - us_of(flops_of(g, n, g[n].size(), d), d);
      again.push_back(n);
    }
    if (us <= kIndistinctLaunch * d.launch_us) continue;
    for (const NodeId n : again) {
      const bool is_handed_on = std::ranges::any_of(group.nodes, [&](NodeId reader) {
        return !contains(again, reader) &&
               std::ranges::any_of(plan.folded.work[at(reader)].reads, [&](const Access& a) { return a.base == n; });
      });
      if (is_handed_on) found.emplace(us, name_in_variants(g, n));
    }
  }
  std::vector<std::string> names;
  for (const auto& [us, name] : found)
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

Savings savings(const PlanCost& unfused, const PlanCost& fused) {
  return savings(unfused.total.traffic.issued.total(), fused.total.traffic.issued.total());
}

}  // namespace kfusion
