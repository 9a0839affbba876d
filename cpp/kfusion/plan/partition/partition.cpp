#include "kfusion/plan/partition/partition.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition/order.hpp"
#include "kfusion/plan/partition/partial_sums.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

bool is_last(Axes axes, Axes all) { return ((axes ^ all) & ((axes ^ all) + 1)) == 0; }

/// Whether each axis is where it was.
bool stay(const MovedAxes& moved) {
  for (std::size_t i = 0; i < moved.size(); ++i)
    if (moved[i] != axis_bit(i)) return false;
  return true;
}

template <class List>
List united(const List& a, const List& b) {
  List r;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(r));
  return r;
}

}  // namespace

Partition::Partition(const Graph& g, const FoldedGraph& folded, const Device& device, const PlanOptions& options)
    : g_(g),
      folded_(folded),
      device_(device),
      options_(options),
      across_stages_(options.fuse),
      rank_(ranks(g)),
      part_of_(g.nodes.size(), -1),
      span_(g.nodes.size(), 0),
      times_(g.nodes.size(), 0),
      readers_(g.nodes.size()),
      is_output_(g.nodes.size(), false) {
  for (const Output& o : g.outputs) is_output_[at(stored_in(folded, o.node))] = true;
  for (const auto& [join, stored] : folded.parts)
    for (const NodeId n : stored) is_output_[at(n)] = true;
  for (NodeId n = 0; n < static_cast<NodeId>(g.nodes.size()); ++n) {
    const auto i = static_cast<std::size_t>(n);
    const Work& w = folded.work[i];
    if (w.kind == WorkKind::kNone) continue;
    order_.push_back(n);
    part_of_[i] = static_cast<int>(parts_.size());
    Part p;
    p.kind = w.kind;
    p.domain = without_ones(w.shape);
    p.place = g[n].place;
    p.nodes = {n};
    p.gathers = kind(g[n].op) == OpKind::kGather;
    p.sums = w.kind == WorkKind::kPartial;
    span_[i] = p.all();
    times_[i] = product(p.domain);
    if (w.kind == WorkKind::kReduce) {
      const auto& r = std::get<ReduceAttributes>(g[n].attributes);
      std::size_t axis = 0;
      for (std::size_t k = 0; k < w.shape.size(); ++k) {
        if (w.shape[k] <= 1) continue;
        if (std::find(r.axes.begin(), r.axes.end(), static_cast<int>(k)) != r.axes.end()) p.reduced |= axis_bit(axis);
        ++axis;
      }
      p.whole = r.whole;
      span_[i] = p.kept();
    }
    for (const Access& a : w.reads) {
      for (const NodeId writer : writers_of(folded, a.base)) {
        if (folded.work[at(writer)].kind == WorkKind::kNone) continue;
        readers_[at(writer)].push_back(n);
        p.sources = united(p.sources, NodeIds{writer});
      }
      if (!is_free(g[a.base])) p.sources = united(p.sources, NodeIds{a.base});
    }
    p.stores = {n};
    parts_.push_back(std::move(p));
  }
  std::sort(order_.begin(), order_.end(), [this](NodeId a, NodeId b) { return rank(a) < rank(b); });
  sequence_ = PartOrder(parts());
  visited_.assign(parts_.size(), 0);
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)  // a call computes all its results
    if (g[n].op == Op::library_result && !unite(part_of(g[n].arguments[0]), part_of(n)))
      throw std::logic_error("kfusion: internal error: a result of a library call comes before the call");
}

std::vector<Edge> Partition::edges_into(NodeId n) const {
  std::vector<Edge> r;
  for (const Access& a : folded_.work[static_cast<std::size_t>(n)].reads) {
    if (part_of(a.base) >= 0) r.push_back({a.base, n, &a});
  }
  return r;
}

NodeIds Partition::reads(NodeId n) const {
  NodeIds r;
  for (const Access& a : folded_.work[static_cast<std::size_t>(n)].reads) r.push_back(a.base);
  return r;
}

std::vector<Edge> Partition::crossing_edges(int a, int b) const {
  const bool from_a = part(a).nodes.size() < part(b).nodes.size();
  std::vector<Edge> r;
  for (const NodeId n : part(from_a ? a : b).nodes) {
    if (from_a) {
      for (const NodeId reader : readers(n)) {
        if (part_of(reader) != b) continue;
        for (const Edge& e : edges_into(reader)) {
          if (e.producer == n) r.push_back(e);
        }
      }
    } else {
      for (const Edge& e : edges_into(n)) {
        if (part_of(e.producer) == a) r.push_back(e);
      }
    }
  }
  return r;
}

/// The axes that the argument of n varies over: a reduction reads all, a map as many as it writes.
Axes Partition::read_span(NodeId n) const {
  const bool reduces = work_kind(n) == WorkKind::kReduce;
  return reduces ? part(part_of(n)).all() : span_[static_cast<std::size_t>(n)];
}

bool Partition::may_share(int a, int b) const {
  return across_stages_ || g_[part(a).nodes[0]].stage == g_[part(b).nodes[0]].stage;
}

std::optional<Reason> Partition::kinds_allow(const Part& a, const Part& b, NodeId consumer) const {
  // A single number of the host goes to the device as an argument of the kernel; what reads nothing is made anywhere.
  const bool anywhere = is_pointwise(a.kind) && a.place.on_host() && (a.domain.empty() || a.sources.empty());
  if (a.place != b.place && !anywhere) return Reason::kCrossDevice;
  if (!across_stages_ && g_[a.nodes[0]].stage != g_[consumer].stage) return Reason::kUnfused;
  if (a.kind == WorkKind::kLibrary || b.kind == WorkKind::kLibrary) return Reason::kLibraryCall;
  if (a.joined || b.joined) return Reason::kContraction;
  const bool contract = a.kind == WorkKind::kContraction || b.kind == WorkKind::kContraction;
  const auto are_apart = [&](const Part& p) {  // of other parts of the rows than tiles are
    return p.sums &&
           std::ranges::any_of(p.nodes, [&](NodeId n) { return g_[n].op == Op::partial_sums && !are_of_tiles(g_, n); });
  };
  if (contract && (are_apart(a) || are_apart(b))) return Reason::kContraction;
  // A contraction takes elementwise work on its result with it, nothing that needs whole rows, and of other
  // contractions only products of the same rows.
  if (work_kind(consumer) == WorkKind::kContraction) return Reason::kContraction;
  if (b.kind == WorkKind::kContraction && !is_pointwise(a.kind) && !multiply_same_rows(a, b))
    return Reason::kContraction;
  if (a.kind == WorkKind::kContraction && b.reduced != 0) return Reason::kContraction;
  return std::nullopt;
}

/// Whether both are products of one left factor, of one shape and type: the kernel of both reads its tiles once.
bool Partition::multiply_same_rows(const Part& a, const Part& b) const {
  const NodeId x = contraction_of(a), y = contraction_of(b);
  if (x < 0 || y < 0 || a.reduced != 0 || b.reduced != 0) return false;
  const bool alike =
      g_[x].op == Op::matmul && g_[y].op == Op::matmul && g_[x].shape == g_[y].shape && g_[x].dtype == g_[y].dtype;
  return alike && folded_.work[at(x)].reads[0] == folded_.work[at(y)].reads[0];
}

/// The first product or convolution of a part; -1 where there is none.
NodeId Partition::contraction_of(const Part& part) const {
  if (part.kind != WorkKind::kContraction) return -1;
  const auto found = std::ranges::find_if(part.nodes, [&](NodeId n) { return work_kind(n) == WorkKind::kContraction; });
  return found == part.nodes.end() ? -1 : *found;
}

std::optional<Reason> Partition::named_pair_allowed(NodeId producer, NodeId consumer) const {
  const auto is = [this](NodeId n, const std::string& text) {
    const std::string& stage = g_.stages[static_cast<std::size_t>(g_[n].stage)].name;
    return text == name(g_[n].op) || text == stage || text == composite_of(stage);
  };
  const auto listed = [&](const auto& pairs) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return (is(producer, pair.first) && is(consumer, pair.second)) ||
             (is(producer, pair.second) && is(consumer, pair.first));
    });
  };
  const bool allowed = options_.allow.empty() || listed(options_.allow);
  return allowed && !listed(options_.forbid) ? std::nullopt : std::optional(Reason::kForbidden);
}

Part Partition::merged_part(int a, int b, const Match& m) const {
  const Part &x = part(a), &y = part(b);
  Part r;
  r.domain = m.domain;
  r.reduced = moved_axes(m.moved_a, x.reduced) | moved_axes(m.moved_b, y.reduced);
  r.whole = x.whole || y.whole;
  r.second_sweep = x.second_sweep || y.second_sweep;
  r.place = x.place.on_host() ? y.place : x.place;
  r.attention = x.attention || y.attention;
  r.gathers = x.gathers || y.gathers;
  r.sums = x.sums || y.sums;
  r.deferred = united(x.deferred, y.deferred);
  const auto either = [&](WorkKind k) { return x.kind == k || y.kind == k; };
  r.kind = either(WorkKind::kContraction)                ? WorkKind::kContraction
           : either(WorkKind::kLibrary)                  ? WorkKind::kLibrary
           : r.reduced != 0 || either(WorkKind::kReduce) ? WorkKind::kReduce
                                                         : WorkKind::kPointwise;
  const auto is_inside = [&](NodeId n) { return part_of(n) == a || part_of(n) == b; };
  for (const NodeId s : united(x.sources, y.sources)) {
    if (!is_inside(s)) r.sources.push_back(s);
  }
  for (const NodeId s : united(x.stores, y.stores)) {
    const auto& all = readers(s);
    if (is_output(s) || !std::all_of(all.begin(), all.end(), is_inside)) r.stores.push_back(s);
  }
  return r;
}

std::optional<Reason> Partition::edges_fit(int a, int b, Verdict& v) const {
  const Match& m = v.match;
  Part& merged = v.merged;
  for (const Edge& e : crossing_edges(a, b)) {
    v.because = e;
    if (const auto reason = named_pair_allowed(e.producer, e.consumer)) return reason;
    if (work_kind(e.consumer) == WorkKind::kContraction) return Reason::kContraction;  // operands are read in tiles
    if (e.access->has_positions()) {
      if (merged.kind != WorkKind::kContraction || !picks(*e.access, merged.domain, merged.reduced))
        return Reason::kGather;
      continue;
    }
    const bool reduces = work_kind(e.consumer) == WorkKind::kReduce;
    const Axes read = reduces ? merged.all() : moved_axes(m.moved_b, span_[static_cast<std::size_t>(e.consumer)]);
    const Axes written = moved_axes(m.moved_a, span_[static_cast<std::size_t>(e.producer)]);
    if (span_of(*e.access, merged.domain, read) != written) return Reason::kDomainMismatch;
    const bool reduced_before = part(a).reduced != 0 && written == merged.kept() && read == merged.all();
    merged.second_sweep |=
        reduced_before || (part(a).reduced != 0 && read == merged.kept() && rows_are_read(b, m.moved_b, merged));
  }
  // Also of siblings: sum(x) and softmax(x). A mean and the variance around it take one sweep.
  if (merged.whole && merged.second_sweep && passes(a, b, merged) > 1) return Reason::kReductionBarrier;
  if (merged.second_sweep && !is_last(merged.reduced, merged.all()) && column_bytes(merged) > device_.on_chip_bytes)
    merged.too_tall = passes(a, b, merged) > 1;
  // Only what is computed once per element or once per row can be stored: a small value is computed many times.
  for (const NodeId s : merged.stores) {
    const Axes span = moved_axes(part_of(s) == a ? m.moved_a : m.moved_b, span_[static_cast<std::size_t>(s)]);
    if (span != merged.all() && span != merged.kept()) return Reason::kMultipleConsumers;
  }
  return std::nullopt;
}

/// Whether elements of a part without a reduction read what will be a row's number once it has one.
bool Partition::rows_are_read(int p, const MovedAxes& moved, const Part& merged) const {
  if (part(p).reduced != 0) return false;
  return std::ranges::any_of(part(p).nodes, [&](NodeId n) {
    return moved_axes(moved, span_[at(n)]) == merged.all() && std::ranges::any_of(edges_into(n), [&](const Edge& e) {
             return part_of(e.producer) == p && moved_axes(moved, span_[at(e.producer)]) == merged.kept();
           });
  });
}

/// Passes of the kernel of both.
int Partition::passes(int a, int b, const Part& merged) const {
  return count_passes(g_, folded_, nodes_of({a, b}), merged.stores, merged.domain);
}

std::int64_t Partition::column_bytes(const Part& part) const {
  const std::int64_t column = product(extents_of(part.domain, part.reduced)), width = tile_width(device_);
  return column > INT64_MAX / width ? INT64_MAX : column * width;
}

std::optional<Reason> Partition::fits_device(const Part& merged) const {
  const bool fits =
      inputs(merged) <= options_.max_inputs && std::ssize(merged.stores) <= options_.max_outputs && !merged.too_tall;
  return fits ? std::nullopt : std::optional(Reason::kResources);
}

std::ptrdiff_t Partition::inputs(const Part& part) const {
  return std::ranges::count_if(part.sources, [&](NodeId s) { return !is_part(g_[s]); });
}

/// Whether b reads what a computes.
bool Partition::reads_from(int a, int b) const {
  return std::ranges::any_of(part(b).sources, [&](NodeId s) { return part_of(s) == a; });
}

/// Whether b reads a join that a stores a part of: all parts have to be stored before.
bool Partition::reads_part_of(int a, int b) const {
  return std::ranges::any_of(part(b).sources, [&](NodeId s) { return part_of(s) == a && is_part(g_[s]); });
}

/// Whether nothing but b reads what a computes.
bool Partition::is_read_by_only(int a, int b) const {
  return std::ranges::all_of(part(a).stores, [&](NodeId s) {
    return std::ranges::all_of(readers(s), [&](NodeId r) { return part_of(r) == a || part_of(r) == b; });
  });
}

/// Where a kernel of both could run, if no third part needs the one and is needed by the other.
std::optional<Partition::Slot> Partition::slot_for(int a, int b) {
  if (!sequence_.is_before(a, b)) std::swap(a, b);
  if (is_read_by_only(a, b)) return Slot{b, {}};
  // Else in the place of a, behind what b needs: parts between the two.
  ++visit_;
  std::vector<int> open = {b}, found;
  while (!open.empty()) {
    const int current = open.back();
    open.pop_back();
    for (const NodeId s : part(current).sources) {
      const int p = part_of(s);
      if (p < 0 || (p == a && current == b) || visited_[static_cast<std::size_t>(p)] == visit_) continue;
      if (p == a) return std::nullopt;
      visited_[static_cast<std::size_t>(p)] = visit_;
      if (!sequence_.is_before(a, p)) continue;
      open.push_back(p);
      found.push_back(p);
    }
  }
  std::sort(found.begin(), found.end(), [this](int x, int y) { return sequence_.is_before(x, y); });
  return Slot{a, std::move(found)};
}

Partition::Verdict Partition::judge(int a, int b, Verdict v) {
  if (v.reason) return v;
  if (reads_part_of(a, b) || reads_part_of(b, a)) return {Reason::kDomainMismatch};
  const Axes reduced_a = moved_axes(v.match.moved_a, part(a).reduced);
  const Axes reduced_b = moved_axes(v.match.moved_b, part(b).reduced);
  if (reduced_a != 0 && reduced_b != 0 && reduced_a != reduced_b) return {Reason::kDomainMismatch};
  v.merged = merged_part(a, b, v.match);
  v.reason = edges_fit(a, b, v);
  if (!v.reason) v.reason = fits_device(v.merged);
  if (v.reason) return v;
  if (auto why = computes_again(a, b, v)) return {.reason = Reason::kNoGain, .missing = std::move(*why)};
  const bool asks = v.merged.kind == WorkKind::kContraction || (v.merged.gathers && v.merged.reduced != 0);
  if (asks && !is_anything_possible({a, b})) {
    if (auto why = why_no_kernel(pattern_of(v.merged, nodes_of({a, b})), {a, b}))
      return {.reason = reason_for(*why), .missing = std::move(*why)};
  }
  if (auto slot = slot_for(a, b))
    v.slot = std::move(*slot);
  else
    v.reason = Reason::kCycle;
  return v;
}

std::optional<Partition::Refused> Partition::refusal(const Edge& e) {
  const int a = part_of(e.producer), b = part_of(e.consumer);
  if (const auto reason = named_pair_allowed(e.producer, e.consumer)) return Refused{*reason, {}, e, {}};
  if (const auto reason = kinds_allow(part(a), part(b), e.consumer)) return Refused{*reason, {}, e, {}};
  Verdict v = judge(a, b, match_edge(e));
  if (!v.reason) return std::nullopt;
  const bool other = *v.reason == Reason::kReductionBarrier && v.because.access;
  return Refused{*v.reason, std::move(v.merged), other ? v.because : e, std::move(v.missing)};
}

std::optional<Reason> Partition::merge_along(const Edge& e) {
  const int a = part_of(e.producer), b = part_of(e.consumer);
  if (const auto reason = kinds_allow(part(a), part(b), e.consumer)) return reason;
  Verdict v = judge(a, b, match_edge(e));
  const auto reason = v.reason;
  if (!reason && v.merged.whole && takes_of_product(v.merged)) return Reason::kDomainMismatch;
  if (!reason) apply(a, b, std::move(v));
  return reason;
}

/// Whether a part takes elements of a product at positions, or computes these: it is to meet the rows of that product,
/// so that all of them can be one kernel, and no reduction of everything.
bool Partition::takes_of_product(const Part& part) const {
  const auto is_of_product = [&](NodeId s) {
    return part_of(s) >= 0 && this->part(part_of(s)).kind == WorkKind::kContraction;
  };
  const auto is_position = [&](NodeId s) {
    return std::ranges::any_of(readers(s), [&](NodeId r) {
      return kind(g_[r].op) == OpKind::kGather && is_of_product(folded_.work[at(r)].reads[0].base);
    });
  };
  return (part.gathers && std::ranges::any_of(part.sources, is_of_product)) ||
         std::ranges::any_of(part.stores, is_position);
}

bool Partition::join_along(const Edge& e) {
  const int a = part_of(e.producer), b = part_of(e.consumer);
  Verdict v = judge(a, b, match_edge(e));
  if (v.reason) return false;
  v.merged.joined = true;
  apply(a, b, std::move(v));
  return true;
}

std::optional<Reason> Partition::merge_siblings(int a, int b, NodeId source) {
  if (part(a).kind == WorkKind::kContraction || part(b).kind == WorkKind::kContraction) return Reason::kContraction;
  if (const auto reason = kinds_allow(part(a), part(b), part(b).nodes[0])) return reason;
  if (reads_from(a, b) || reads_from(b, a)) return Reason::kCycle;
  if (!sweeps(a, source) || !sweeps(b, source)) return Reason::kDomainMismatch;
  const auto common = refine(part(a).domain, part(b).domain);
  const auto a_cut = common ? cut(part(a).domain, part(a).all(), common->pieces_a, common->extents) : std::nullopt;
  const auto b_cut = common ? cut(part(b).domain, part(b).all(), common->pieces_b, common->extents) : std::nullopt;
  if (!a_cut || !b_cut) return Reason::kDomainMismatch;
  Verdict v = judge(a, b, {std::nullopt, {a_cut->domain, a_cut->moved, b_cut->moved}});
  const auto reason = v.reason;
  if (!reason) apply(a, b, std::move(v));
  return reason;
}

std::optional<Reason> Partition::merge_beside(int a, int b) {
  const auto is_loops = [](const Part& p) { return is_pointwise(p.kind) || p.kind == WorkKind::kReduce; };
  if (!is_loops(part(a)) || !is_loops(part(b)) || part(a).domain != part(b).domain ||
      part(a).reduced != part(b).reduced)
    return Reason::kDomainMismatch;
  if (const auto reason = kinds_allow(part(a), part(b), part(b).nodes[0])) return reason;
  if (reads_from(a, b) || reads_from(b, a)) return Reason::kCycle;
  Match same{part(a).domain, {}, {}};
  for (std::size_t i = 0; i < same.domain.size(); ++i) same.moved_a.push_back(axis_bit(i));
  same.moved_b = same.moved_a;
  Verdict v = judge(a, b, {std::nullopt, std::move(same)});
  const auto reason = v.reason;
  if (!reason) apply(a, b, std::move(v));
  return reason;
}

bool Partition::sweeps(int p, NodeId source) const {
  return std::any_of(part(p).nodes.begin(), part(p).nodes.end(), [&](NodeId n) {
    const auto& reads = folded_.work[static_cast<std::size_t>(n)].reads;
    return read_span(n) == part(p).all() &&
           std::any_of(reads.begin(), reads.end(), [&](const Access& r) { return r.base == source && is_identity(r); });
  });
}

void Partition::apply(int a, int b, Verdict v) {
  for (const auto& [p, moved] : {std::pair(a, &v.match.moved_a), std::pair(b, &v.match.moved_b)}) {
    if (!stay(*moved) || !runs_alike(part(p), v.merged))  // not most merges: so a chain of n costs n
      move_axes(p, *moved, v.merged);
  }
  move_nodes(a, b, std::move(v.merged), v.slot);
}

bool Partition::unite(int a, int b) {
  if (reads_part_of(a, b) || reads_part_of(b, a)) return false;
  const auto slot = slot_for(a, b);
  if (!slot) return false;
  const Part &x = part(a), &y = part(b);
  Match m;
  const auto size = [](const Part& p) { return std::pair(product(p.domain), p.reduced != 0); };
  const Part& larger = size(x) >= size(y) ? x : y;  // of equal ones, the one whose axes tell what is reduced
  m.domain = larger.domain;
  const Axes reduced = larger.reduced;
  Part merged = merged_part(a, b, m);
  merged.reduced = reduced;
  merged.joined = true;
  move_nodes(a, b, std::move(merged), *slot);
  return true;
}

/// The smaller list goes into the larger, so that n merges cost n log n.
void Partition::move_nodes(int a, int b, Part merged, const Slot& slot) {
  const bool to_a = part(a).nodes.size() >= part(b).nodes.size();
  Part &to = parts_[static_cast<std::size_t>(to_a ? a : b)], &from = parts_[static_cast<std::size_t>(to_a ? b : a)];
  merged.nodes = std::move(to.nodes);
  for (const NodeId n : from.nodes) {
    merged.nodes.push_back(n);
    part_of_[static_cast<std::size_t>(n)] = to_a ? a : b;
  }
  from = {};
  to = std::move(merged);
  sequence_.move_before(slot.before, slot.place);
  sequence_.merge(to_a ? a : b, to_a ? b : a, slot.place);
}

}  // namespace kfusion
