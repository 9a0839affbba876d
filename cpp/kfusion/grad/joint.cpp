#include "kfusion/grad/joint.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kfusion/grad/equal.hpp"
#include "kfusion/grad/vjp.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/op_cost.hpp"

namespace kfusion::grad {
namespace {

/// What a store costs beside a load.
constexpr double kStore = 1 + 1 / Joint::kUnits;

MinCut::Capacity capacity(double bytes) {
  return static_cast<MinCut::Capacity>(std::min(std::ceil(bytes * Joint::kUnits), static_cast<double>(Joint::kHuge)));
}

/// Cost of an edge that stores nothing; infinite for what must not be done.
MinCut::Capacity other_cost(double bytes, double dearness) {
  return std::isinf(bytes) ? Joint::kHuge : capacity(bytes / dearness);
}

bool is_within(const LibraryAlternative& alternative, const Node& n) {
  return n.stage >= alternative.first_stage && n.stage < alternative.end_stage;
}

double product_seconds(const Graph& g, const Node& n, const Device& device) {
  const Extents &x = g[n.arguments[0]].shape, &w = g[n.arguments[1]].shape;
  const std::int64_t depth = n.op == Op::matmul ? x.back() : w[1] * w[2] * w[3];
  return 2 * static_cast<double>(depth) * static_cast<double>(n.size()) / peak_flops(device, n.dtype, true);
}

/// A deep product with what follows it, such as a bias.
bool has_product_like_result(const Graph& g, const LibraryAlternative& alternative, const Device& device) {
  return std::ranges::any_of(g.nodes, [&](const Node& n) {
    return kind(n.op) == OpKind::kContraction && is_within(alternative, n) &&
           n.nbytes() == g[alternative.result].nbytes() &&
           product_seconds(g, n, device) > 2 * static_cast<double>(n.nbytes()) / device.bandwidth;
  });
}

/// By node: whether backward compares it, or a view of it, with other values.
std::vector<bool> compared(const Graph& g, NodeId forward_end) {
  std::vector<bool> found(g.nodes.size());
  for (NodeId id = forward_end; id < std::ssize(g.nodes); ++id) {
    if (g[id].op != Op::equal) continue;
    for (NodeId a : g[id].arguments) {
      while (kind(g[a].op) == OpKind::kView) a = g[a].arguments[0];
      found[at(a)] = true;
    }
  }
  return found;
}

}  // namespace

bool is_large_inside(const Graph& g, const LibraryAlternative& alternative) {
  std::int64_t outside = g[alternative.result].size(), largest = 0;
  for (const NodeId a : alternative.arguments) outside += g[a].size();
  for (NodeId id = 0; id < alternative.result; ++id)
    if (is_within(alternative, g[id])) largest = std::max(largest, g[id].size());
  return largest > outside;
}

Joint::Joint(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs, const Device& device)
    : forward_end_(static_cast<NodeId>(graph.graph().nodes.size())) {
  GraphBuilder joint = graph;
  NodeIds outputs, cotangents;
  for (const NodeId y : results) {
    const Node n = graph.graph()[y];
    if (!is_float(n.dtype)) continue;
    outputs.push_back(y);
    cotangents.push_back(joint.input("cotangent" + std::to_string(y), n.shape, n.dtype, n.library, n.place, false));
  }
  const Vjp made = add_vjp(joint, outputs, cotangents, inputs, 0);
  g_ = joint.graph();
  same_ = first_equal(g_);
  result_.resize(g_.nodes.size(), -1);
  for (std::size_t i = results.size(); i-- > 0;) result_[at(same_[at(results[i])])] = static_cast<int>(i);
  std::vector<bool> is_late(g_.nodes.size());
  for (const NodeId c : cotangents) is_late[at(c)] = true;
  for (NodeId id = forward_end_; id < std::ssize(g_.nodes); ++id)
    for (const NodeId a : g_[id].arguments) is_late[at(id)] = is_late[at(id)] || is_late[at(a)];
  hide_insides(device);
  find_inexact();
  find_often_stored();
  NodeIds gradients;
  for (const NodeId id : made.gradients) gradients.push_back(id);
  find_read(is_late, gradients);
  for (const NodeId id : needed_) again_.push_back(again(id, device));
}

/// What backward reads of values that do not wait for it, and what these are made of.
void Joint::find_read(const std::vector<bool>& is_late, const NodeIds& gradients) {
  is_read_.resize(g_.nodes.size());
  const auto read = [&](NodeId id) {
    if (!is_late[at(id)]) is_read_[at(same_[at(id)])] = true;
  };
  for (NodeId id = forward_end_; id < std::ssize(g_.nodes); ++id)
    if (is_late[at(id)])
      for (const NodeId a : g_[id].arguments) read(a);
  for (const NodeId id : gradients) read(id);
  std::vector<bool> is_needed = is_read_;
  for (auto id = static_cast<NodeId>(g_.nodes.size()); id-- > 0;)
    if (is_needed[at(id)])
      for (const NodeId a : made_of(id)) is_needed[at(same_[at(a)])] = true;
  index_.resize(g_.nodes.size(), -1);
  for (NodeId id = 0; id < std::ssize(g_.nodes); ++id) {
    if (!is_needed[at(id)] || is_free(g_[id])) continue;
    index_[at(id)] = static_cast<int>(needed_.size());
    needed_.push_back(id);
  }
}

/// Hides what is inside a function of the library: its result is kept and nothing else.
void Joint::hide_insides(const Device& device) {
  is_hidden_.resize(g_.nodes.size());
  for (const LibraryAlternative& alternative : g_.alternatives) {
    if (!is_large_inside(g_, alternative) && !has_product_like_result(g_, alternative, device)) continue;
    for (NodeId id = 0; id < forward_end_; ++id)
      if (id != alternative.result && is_within(alternative, g_[id])) is_hidden_[at(id)] = true;
  }
}

void Joint::find_inexact() {
  is_inexact_.resize(g_.nodes.size());
  const std::vector<bool> is_compared = compared(g_, forward_end_);
  is_of_rows_.resize(g_.nodes.size());
  loose_ = loose_values(g_);
  for (NodeId id = 0; id < std::ssize(g_.nodes); ++id) {
    const Node& n = g_[id];
    const bool reduces = kind(n.op) == OpKind::kReduce;
    const bool maps = is_elementwise(n) || kind(n.op) == OpKind::kView;
    const auto is_rows = [&](NodeId a) { return is_of_rows_[at(a)] && g_[a].size() >= n.size(); };
    is_of_rows_[at(id)] = reduces || (maps && std::ranges::any_of(n.arguments, is_rows));
    const bool is_extreme = n.op == Op::max || n.op == Op::min;
    is_inexact_[at(id)] =
        is_extreme ? is_compared[at(id)] && !is_of_input(n.arguments[0]) : is_half(n.dtype) && is_of_rows_[at(id)];
  }
  for (NodeId id = 0; id < std::ssize(g_.nodes); ++id)
    if (is_inexact_[at(id)]) is_inexact_[at(same_[at(id)])] = true;
}

/// Products, or what maps make of each that nothing else reads: a kernel of products takes these with it.
void Joint::find_often_stored() {
  is_often_stored_.resize(g_.nodes.size());
  std::vector<int> readers(g_.nodes.size());
  std::vector<NodeId> reader(g_.nodes.size(), -1);
  for (NodeId id = 0; id < forward_end_; ++id)
    for (const NodeId a : g_[id].arguments)
      if (reader[at(a)] != id) ++readers[at(a)], reader[at(a)] = id;
  for (NodeId id = 0; id < forward_end_; ++id) {
    const OpKind of = kind(g_[id].op);
    if (of != OpKind::kContraction && of != OpKind::kLibrary) continue;
    NodeId stored = id, n = id;
    while (of == OpKind::kContraction && readers[at(n)] == 1 && result(n) < 0) {
      n = reader[at(n)];
      if (g_[n].size() != g_[id].size()) break;
      if (is_elementwise(g_[n]))
        stored = n;
      else if (kind(g_[n].op) != OpKind::kView)
        break;
    }
    is_often_stored_[at(same_[at(stored)])] = true;
  }
}

bool Joint::is_there(NodeId id) const { return g_[id].op == Op::input || (result(id) >= 0 && !is_inexact_[at(id)]); }

/// Whether it has an argument's values, perhaps in a wider type.
bool Joint::is_of_input(NodeId id) const {
  while (kind(g_[id].op) == OpKind::kView ||
         (g_[id].op == Op::cast && item_bytes(g_[id].dtype) >= item_bytes(g_[g_[id].arguments[0]].dtype)))
    id = g_[id].arguments[0];
  return g_[id].op == Op::input;
}

/// What has to be there to compute it again: each result of a call needs the call.
const NodeIds& Joint::made_of(NodeId id) const {
  const Node& n = g_[id];
  return n.op == Op::library_result ? g_[n.arguments[0]].arguments : n.arguments;
}

/// Views are not: what they look at is. Nor are masks, which comparisons make again.
bool Joint::is_storable(NodeId id) const {
  const Node& n = g_[id];
  const bool is_mask = n.dtype == DType::kBool && kind(n.op) != OpKind::kLibrary;
  return id < forward_end_ && !is_hidden_[at(id)] && !is_inexact_[at(id)] && kind(n.op) != OpKind::kView && !is_mask;
}

double Joint::again(NodeId id, const Device& device) const {
  const Node& n = g_[id];
  const auto argument_bytes = [&] {
    double sum = 0;
    for (const NodeId a : n.arguments) sum += static_cast<double>(g_[a].nbytes());
    return sum;
  };
  const auto bytes = static_cast<double>(n.nbytes());
  switch (kind(n.op)) {
    case OpKind::kMap:
    case OpKind::kCast: {
      const DType stored = g_[n.arguments[0]].dtype;
      const double flops = info(n.op).flops * static_cast<double>(n.size()) * work_of_flop(n.op, stored, device);
      return flops / peak_flops(device, stored, false) * device.bandwidth / kHidden;
    }
    case OpKind::kReduce:
    case OpKind::kPartial:
      return argument_bytes();
    case OpKind::kJoin:
    case OpKind::kGather:
      return bytes;
    case OpKind::kContraction:
      return product_seconds(g_, n, device) * device.bandwidth + argument_bytes() + 2 * bytes;
    case OpKind::kLibrary:
      return HUGE_VAL;
    case OpKind::kSource:
    case OpKind::kView:
      return 0;
  }
  return 0;
}

MinCut::Capacity Joint::store_cost(NodeId id, double dearness) const {
  const auto bytes = static_cast<double>(g_[id].nbytes());
  if (is_there(id)) return other_cost(bytes, dearness);
  if (!is_storable(id)) return MinCut::kInfinite;
  return other_cost(bytes, dearness) + capacity(bytes * kStore * (is_often_stored_[at(id)] ? 0.5 : 1));
}

Joint::Choice Joint::choose(double dearness, NodeId never) const {
  Bounds bounds;
  if (never >= 0) bounds.keep.insert(never);
  Choice best = cut(dearness, bounds);
  if (!clashes(best).rows.empty()) {
    Choice other = without_clashes(best, bounds, true);
    best = without_clashes(std::move(best), std::move(bounds), false);
    if (other.cost < best.cost) best = std::move(other);
  }
  if (never < 0 && !best.is_possible()) throw std::logic_error("kfusion: no cut of both passes");
  return best;
}

/// The cheapest where numbers of rows are computed again, or kept with what they are of.
Joint::Choice Joint::without_clashes(Choice choice, Bounds never, bool keeps_rows) const {
  for (Clashes found = clashes(choice); !found.rows.empty() && choice.is_possible(); found = clashes(choice)) {
    if (keeps_rows)
      never.again.merge(found.values);
    else
      never.keep.merge(found.rows);
    choice = cut(choice.dearness, never);
  }
  return choice;
}

Joint::Clashes Joint::clashes(const Choice& choice) const {
  Clashes found;
  for (const NodeId row : choice.kept) {
    if (!is_of_rows_[at(row)] || !loose_.values[at(row)]) continue;
    std::vector<NodeId> open = {row};
    std::set<NodeId> seen;
    while (!open.empty()) {
      const NodeId id = open.back();
      open.pop_back();
      for (NodeId a : made_of(id)) {
        a = same_[at(a)];
        if (!loose_.values[at(a)] || std::ranges::binary_search(choice.kept, a) || !seen.insert(a).second) continue;
        open.push_back(a);
        if (!loose_.rounds[at(a)] || !std::ranges::binary_search(choice.again, a)) continue;
        found.rows.insert(row);
        found.values.insert(a);
      }
    }
  }
  return found;
}

Joint::Choice Joint::cut(double dearness, const Bounds& never) const {
  const int count = static_cast<int>(needed_.size()), source = 2 * count, sink = source + 1;
  MinCut cut(sink + 1);
  for (int i = 0; i < count; ++i) {
    const NodeId id = needed_[at(i)];
    const bool is_given = g_[id].op == Op::input || never.again.contains(id);
    cut.add_edge(2 * i, 2 * i + 1, never.keep.contains(id) ? MinCut::kInfinite : store_cost(id, dearness));
    if (is_given || again_[at(i)] > 0)
      cut.add_edge(source, 2 * i, is_given ? MinCut::kInfinite : other_cost(again_[at(i)], dearness));
    for (const NodeId a : made_of(id))
      if (const int from = index_[at(same_[at(a)])]; from >= 0) cut.add_edge(2 * from + 1, 2 * i, MinCut::kInfinite);
    if (is_read_[at(id)]) cut.add_edge(2 * i + 1, sink, MinCut::kInfinite);
  }
  const std::vector<bool> again = cut.sink_side(source, sink);
  Choice choice{{}, {}, dearness, cut.capacity()};
  for (int i = 0; i < count; ++i) {
    if (again[at(2 * i)]) choice.again.push_back(needed_[at(i)]);
    if (!again[at(2 * i)] && again[at(2 * i + 1)]) choice.kept.push_back(needed_[at(i)]);
  }
  return choice;
}

std::int64_t Joint::stored_bytes(const Choice& choice) const {
  std::int64_t sum = 0;
  for (const NodeId id : choice.kept) sum += is_there(id) ? 0 : nbytes(id);
  return sum;
}

}  // namespace kfusion::grad
