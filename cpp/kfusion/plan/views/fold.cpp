#include "kfusion/plan/views/fold.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// Whether each axis of `from` is cut into axes of `to`: then any strides can be reshaped.
bool only_splits(const Extents& from, const Extents& to) {
  std::size_t j = 0;
  for (const std::int64_t e : from) {
    if (e == 0) return false;
    std::int64_t n = 1;
    while (n < e && j < to.size()) n *= to[j++];
    if (n != e) return false;
  }
  return true;
}

/// A list of views, applied first to last. Equal lists have equal numbers; 0 is the empty one.
using Chain = std::int32_t;
constexpr Chain kEmpty = 0, kUnknown = -1, kSeveral = -2;
constexpr int kLongestChain = 32;  // keeps the work linear; a value behind more views is stored

class Chains {
 public:
  /// kSeveral (nothing is moved) where the list would be too long.
  Chain prepend(const Node& view, Chain rest) {
    const int length = link(rest).length + 1;
    if (length > kLongestChain) return kSeveral;
    const std::string key = key_of(view) + '|' + std::to_string(rest);
    const auto [found, added] = index_.try_emplace(key, static_cast<Chain>(links_.size()));
    if (added) links_.push_back({view, rest, length});
    return found->second;
  }

  /// Whether it leaves elements out.
  bool cuts(Chain c) const {
    for (; c > kEmpty; c = link(c).rest)
      if (link(c).view.op == Op::slice) return true;
    return false;
  }

  Access apply(Chain c, Access a) const {
    for (; c != kEmpty; c = link(c).rest) a = *through_view(link(c).view, a);  // only views that any strides allow
    return a;
  }

 private:
  struct Link {
    Node view;
    Chain rest = kEmpty;
    int length = 0;
  };
  const Link& link(Chain c) const { return links_[static_cast<std::size_t>(c)]; }

  static std::string key_of(const Node& view) {
    std::string key = std::to_string(static_cast<int>(view.op));
    const auto add = [&key](const auto& values) {
      for (const auto v : values) key += ',' + std::to_string(v);
      key += ';';
    };
    add(view.shape);
    if (const auto* t = std::get_if<TransposeAttributes>(&view.attributes)) add(t->axes);
    if (const auto* s = std::get_if<SliceAttributes>(&view.attributes)) {
      add(s->start);
      add(s->step);
    }
    return key;
  }

  std::vector<Link> links_ = std::vector<Link>(1);
  std::map<std::string, Chain> index_;
};

class Folding {
 public:
  Folding(const Graph& g, bool move)
      : g_(g),
        move_(move),
        demand_(g.nodes.size(), kUnknown),
        pulled_(g.nodes.size(), kEmpty),
        moved_(g.nodes.size()),
        follows_product_(g.nodes.size()) {
    result_.work.resize(g.nodes.size());
    result_.value.resize(g.nodes.size());
  }

  FoldedGraph run() {
    if (move_) {
      find_products();
      collect_demands();
    }
    for (NodeId n = 0; n < static_cast<NodeId>(g_.nodes.size()); ++n) fold(n);
    place_parts(g_, result_);
    return std::move(result_);
  }

 private:
  static bool is_gather(const Node& n) { return kind(n.op) == OpKind::kGather; }
  /// One element for each of its shape, whatever order it is computed in.
  static bool is_map(const Node& n) { return is_elementwise(n) || is_gather(n) || is_part(n); }

  /// Not broadcasts: a value is not to be computed once for each of its repetitions.
  bool movable(const Node& view) const {
    if (view.op == Op::broadcast) return false;
    return view.op != Op::reshape || only_splits(g_[view.arguments[0]].shape, view.shape);
  }

  void demand(NodeId n, Chain c) {
    Chain& d = demand_[static_cast<std::size_t>(n)];
    d = d == kUnknown || d == c ? c : kSeveral;
  }

  /// Maps of a product that run over its elements can share its kernel, in its order.
  void find_products() {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      const auto is_product = [&](NodeId a) {
        return g_[a].shape == g_[n].shape && (g_[a].op == Op::matmul || follows_product_[static_cast<std::size_t>(a)]);
      };
      follows_product_[static_cast<std::size_t>(n)] = is_map(g_[n]) && std::ranges::any_of(g_[n].arguments, is_product);
    }
  }

  /// From the results to the inputs: through which views is each node read, and are they the same for all readers?
  void collect_demands() {
    for (const Output& o : g_.outputs) demand_output(o.node);
    for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;) {
      const Node& node = g_[n];
      const Chain d = demand_[static_cast<std::size_t>(n)];
      if (is_map(node)) {
        const bool stays = follows_product_[static_cast<std::size_t>(n)] && !chains_.cuts(d);
        if (d > kEmpty && !stays) pulled_[static_cast<std::size_t>(n)] = d;
        for (const NodeId a : node.arguments)
          demand(a, is_gather(node) ? kEmpty : through_map(node, a, pulled_[static_cast<std::size_t>(n)]));
      } else if (kind(node.op) == OpKind::kView && movable(node)) {
        if (d != kUnknown) demand(node.arguments[0], d == kSeveral ? kSeveral : chains_.prepend(node, d));
      } else {
        for (const NodeId a : node.arguments) demand(a, kEmpty);
      }
    }
  }

  /// A result in another order than it was computed in is a view of what is stored; of a slice, only that is computed.
  void demand_output(NodeId n) {
    NodeId base = n;
    bool sliced = false;
    for (; kind(g_[base].op) == OpKind::kView; base = g_[base].arguments[0]) sliced |= g_[base].op == Op::slice;
    demand(sliced ? n : base, kEmpty);
  }

  /// An argument that is repeated along axes is so before the views that its reader was moved under.
  Chain through_map(const Node& map, NodeId argument, Chain pulled) {
    if (pulled == kEmpty || g_[argument].shape == map.shape) return pulled;
    Node repeat;
    repeat.op = Op::broadcast;
    repeat.shape = map.shape;
    return chains_.prepend(repeat, pulled);
  }

  /// How a node's own elements lie: those of an input as the caller's array has them, of an iota all that have one
  /// index on one element.
  static Access stored_access(NodeId n, const Node& node) {
    Access a = identity_access(n, node.shape);
    if (const auto* input = std::get_if<InputAttributes>(&node.attributes); input && !input->strides.empty()) {
      a.strides = input->strides;
    } else if (const auto* iota = std::get_if<IotaAttributes>(&node.attributes)) {
      const auto axis = static_cast<std::size_t>(iota->axis);
      a.base_size = node.shape[axis];
      a.strides.assign(node.shape.size(), 0);
      a.strides[axis] = 1;
    }
    return a;
  }

  /// How `reader`, which sees its arguments in shape `shape` and was moved under `pulled`, reads `argument`.
  Access read(NodeId argument, const Extents* shape, Chain pulled) const {
    const Access& a = result_.value[static_cast<std::size_t>(argument)];
    if (moved_[static_cast<std::size_t>(argument)] && pulled != kEmpty) return a;  // both under the same views
    return chains_.apply(pulled, shape ? broadcast_to(a, *shape) : a);
  }

  /// What is read of x and of the indices for each element of a gather.
  std::vector<Access> gathered(const Node& node, Chain pulled) const {
    const auto value = [&](std::size_t i) { return result_.value[static_cast<std::size_t>(node.arguments[i])]; };
    return {chains_.apply(pulled, taken_elements(node, value(0))),
            chains_.apply(pulled, taken_indices(node, value(1)))};
  }

  void fold(NodeId n) {
    const Node& node = g_[n];
    const auto i = static_cast<std::size_t>(n);
    Work& work = result_.work[i];
    Access& value = result_.value[i];
    value = stored_access(n, node);
    if (is_map(node)) {
      work.kind = WorkKind::kPointwise;
      if (is_gather(node))
        work.reads = gathered(node, pulled_[i]);
      else
        for (const NodeId a : node.arguments) work.reads.push_back(read(a, &node.shape, pulled_[i]));
      work.shape = chains_.apply(pulled_[i], value).shape;
      moved_[i] = pulled_[i] != kEmpty;
      if (moved_[i]) value = identity_access(n, work.shape);
      for (Access& a : work.reads) a = broadcast_to(a, work.shape);
    } else if (kind(node.op) == OpKind::kView) {
      fold_view(i, node, work, value);
    } else if (kind(node.op) != OpKind::kSource && kind(node.op) != OpKind::kJoin) {
      for (const NodeId a : node.arguments) work.reads.push_back(read(a, nullptr, kEmpty));
      work.kind = kind(node.op) == OpKind::kReduce    ? WorkKind::kReduce
                  : kind(node.op) == OpKind::kPartial ? WorkKind::kPartial
                  : kind(node.op) == OpKind::kLibrary ? WorkKind::kLibrary
                                                      : WorkKind::kContraction;
      const bool reduces = work.kind == WorkKind::kReduce || work.kind == WorkKind::kPartial;
      work.shape = reduces ? work.reads[0].shape : node.shape;
      if (work.kind == WorkKind::kReduce && product(work.shape) == node.size()) {  // of one element each: a map
        work = {WorkKind::kPointwise, node.shape, {*reshaped(work.reads[0], node.shape)}};
      }
    }
  }

  void fold_view(std::size_t i, const Node& node, Work& work, Access& value) {
    const auto from = static_cast<std::size_t>(node.arguments[0]);
    const Access& argument = result_.value[from];
    moved_[i] = moved_[from] && movable(node);
    if (moved_[i]) {
      value = argument;  // its base is computed under this view already
    } else if (const auto through = through_view(node, argument)) {
      value = *through;
    } else {
      work = {WorkKind::kCopy, argument.shape, {argument}};
    }
  }

  const Graph& g_;
  const bool move_;
  Chains chains_;
  std::vector<Chain> demand_;          ///< by node
  std::vector<Chain> pulled_;          ///< by map: the views that it was moved under
  std::vector<bool> moved_;            ///< by node: a map that was moved, or one of the views that it was moved under
  std::vector<bool> follows_product_;  ///< by node
  FoldedGraph result_;
};

}  // namespace

FoldedGraph fold_views(const Graph& g, bool move) { return Folding(g, move).run(); }

}  // namespace kfusion
