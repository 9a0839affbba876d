#include "kfusion/plan/traffic.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "kfusion/checked.hpp"
#include "kfusion/plan/joins.hpp"
#include "kfusion/plan/op_cost.hpp"
#include "kfusion/plan/powers.hpp"
#include "kfusion/plan/price.hpp"

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

/// Maps and reductions of half types are computed in float32.
DType compute_dtype(DType stored) { return is_half(stored) ? DType::kFloat32 : stored; }

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t n = 1;
  for (const std::int64_t f : factors) n = checked_multiply(n, f, "operations");
  return n;
}

/// The result of the group's last reduction: deferred maps run once for each of its elements.
std::int64_t reduced_size(const Graph& g, const Group& group) {
  const auto last = std::find_if(group.nodes.rbegin(), group.nodes.rend(),
                                 [&](NodeId n) { return kind(g[n].op) == OpKind::kReduce; });
  return g[*last].size();
}

bool contains(const std::vector<NodeId>& nodes, NodeId n) {
  return std::find(nodes.begin(), nodes.end(), n) != nodes.end();
}

FlopCount counted(DType dtype, bool matrix, std::int64_t count, double times = 1) {
  return {dtype, matrix, count, static_cast<double>(count) * times};
}

/// Whether a map divides by what several of its elements share, which executors take as a product with the reciprocal.
bool divides_by_shared(const Graph& g, const Node& n) {
  if (n.op != Op::divide) return false;
  NodeId by = n.arguments[1];
  while (kind(g[by].op) == OpKind::kView) by = g[by].arguments[0];
  return g[by].size() < n.size();
}

/// What a map's FLOPs take (work_of_flop), as executors compute it.
double work_of_map(const Graph& g, NodeId id, DType dtype, const Device& device) {
  if (divides_by_shared(g, g[id])) return 1;
  const int power = power_by_products(g, id);
  if (power == 0) return work_of_flop(g[id].op, dtype, device);
  return power > 0 ? 2 : 1 + work_of_flop(Op::reciprocal, dtype, device);
}

FlopCount flops_of(const Graph& g, const Group& group, NodeId id, const Device& device) {
  const Node& n = g[id];
  const auto argument = [&](std::size_t i) -> const Node& { return g[n.arguments[i]]; };
  switch (kind(n.op)) {
    case OpKind::kMap: {  // a condition comes first: the last argument is of the type that is computed with
      const std::int64_t size = contains(group.deferred, id) ? reduced_size(g, group) : n.size();
      const DType dtype = argument(n.arguments.size() - 1).dtype;
      const double work = work_of_map(g, id, dtype, device);
      return counted(compute_dtype(dtype), false, product({info(n.op).flops, size}), work);
    }
    case OpKind::kReduce:
    case OpKind::kPartial:
      return counted(compute_dtype(argument(0).dtype), false,
                     product({std::max(info(n.op).flops, 1), argument(0).size()}));
    case OpKind::kContraction: {
      const Extents& a = argument(0).shape;
      const Extents& w = argument(1).shape;
      const std::int64_t depth = n.op == Op::matmul ? a.back() : product({w[1], w[2], w[3]});
      return counted(argument(0).dtype, true, product({2, depth, n.size()}));
    }
    case OpKind::kLibrary:
      if (n.op == Op::library_call)
        return counted(argument(0).dtype, true, g.attributes<LibraryCallAttributes>(id).flops);
      return {};
    default:
      return {};
  }
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

Traffic traffic_of(const Graph& g, const Group& group, const std::vector<Read>& reads, const Device& device) {
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
  for (const NodeId n : group.nodes) add(t.flops, flops_of(g, group, n, device));
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
    const Traffic traffic = traffic_of(p.graph, group, reads, d);
    c.groups.push_back({traffic, pricer.price(group, traffic, reads)});
    add(c.total, c.groups.back());
  }
  c.total.price.bound = bound_of(c.total.price);
  c.peak_intermediate_bytes = peak_intermediate_bytes(p);
  return c;
}

Savings savings(const PlanCost& unfused, const PlanCost& fused) {
  return savings(unfused.total.traffic.issued.total(), fused.total.traffic.issued.total());
}

}  // namespace kfusion
