#include "kfusion/plan/partition/duplicate.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "kfusion/graph/copy.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kLargestSlice = 64;  // nodes that are computed again at most, for each reader

class Copying {
 public:
  Copying(const Graph& g, const Partition& p, const FoldedGraph& folded) : g_(g), p_(p), folded_(folded) {}

  std::optional<CopiedGraph> run() {
    for (const NodeId n : p_.order()) consider(n);
    if (copies_.empty()) return std::nullopt;
    return rebuilt();
  }

 private:
  /// A node and the elementwise work behind it in its own kernel, and what that reads.
  struct Slice {
    std::set<NodeId> nodes, sources;
  };

  const Work& work(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)]; }

  /// `from_outputs`: from what the kernel stores for the caller, whoever reads it.
  Slice slice_of(NodeId n, bool from_outputs) const {
    Slice s;
    std::vector<NodeId> open = {n};
    while (!open.empty() && s.nodes.size() <= kLargestSlice) {
      const NodeId current = open.back();
      open.pop_back();
      const bool inside = p_.part_of(current) == p_.part_of(n) && work(current).kind == WorkKind::kPointwise &&
                          !(from_outputs && p_.is_output(current));
      if (!inside) {
        if (!is_free(g_[current])) s.sources.insert(current);
        continue;
      }
      if (!s.nodes.insert(current).second) continue;
      for (const Access& a : work(current).reads) open.push_back(a.base);
    }
    return s;
  }

  std::int64_t bytes(NodeId n) const {
    const Extents& shape = work(n).kind == WorkKind::kPointwise ? work(n).shape : g_[n].shape;
    return product(shape) * static_cast<std::int64_t>(item_bytes(g_[n].dtype));
  }

  void consider(NodeId n) {
    if (work(n).kind != WorkKind::kPointwise || p_.is_output(n)) return;
    const int own = p_.part_of(n);
    std::set<int> outside;
    bool all_can = true;
    for (const NodeId r : p_.readers(n)) {
      const int part = p_.part_of(r);
      if (part == own) continue;
      const WorkKind k = p_.part(part).kind;
      const bool follows = k == WorkKind::kContraction && work(r).kind == WorkKind::kPointwise && !p_.part(part).joined;
      const bool can = is_pointwise(k) || k == WorkKind::kReduce || follows;
      all_can &= can && p_.part(part).place == p_.part(own).place;
      if (can) outside.insert(part);
    }
    if (outside.empty() || !all_can) return;
    const Slice from_inputs = slice_of(n, false), from_outputs = slice_of(n, true);
    const std::int64_t saved_by_inputs = saved(n, from_inputs, outside),
                       saved_by_outputs = saved(n, from_outputs, outside);
    const bool inputs = saved_by_inputs > saved_by_outputs;
    if (std::max(saved_by_inputs, saved_by_outputs) <= 0) return;
    const Slice& s = inputs ? from_inputs : from_outputs;
    for (const int part : outside) copies_[part].insert(s.nodes.begin(), s.nodes.end());
  }

  /// Bytes, if the kernels `outside` compute n by such a slice each, and nobody stores it.
  std::int64_t saved(NodeId n, const Slice& s, const std::set<int>& outside) const {
    if (s.nodes.size() > kLargestSlice) return 0;
    const int own = p_.part_of(n);
    const auto& stores = p_.part(own).stores;
    std::int64_t saved = bytes(n);  // it is not written any more
    for (const NodeId source : s.sources) {
      const bool stored = p_.part_of(source) != own || std::find(stores.begin(), stores.end(), source) != stores.end();
      if (!stored) saved -= bytes(source);
    }
    for (const int part : outside) {
      saved += bytes(n);
      for (const NodeId source : s.sources) {
        const auto& sources = p_.part(part).sources;
        if (!std::binary_search(sources.begin(), sources.end(), source)) saved -= bytes(source);
      }
    }
    return saved;
  }

  /// The kernels that get copies read them instead of the originals; views in between are copied along.
  CopiedGraph rebuilt() const {
    std::map<std::pair<int, NodeId>, NodeId> copy_of;
    std::vector<std::vector<int>> copied_for(g_.nodes.size());  // parts, ascending
    for (const auto& [part, nodes] : copies_)
      for (const NodeId n : nodes) copied_for[at(n)].push_back(part);
    GraphCopy to(g_);
    const Graph made = to.copied([&](NodeId n, const Node& moved) {
      const auto add = [&](int part) {
        Node node = moved;
        for (std::size_t i = 0; i < node.arguments.size(); ++i)
          if (const auto copied = copy_of.find({part, g_[n].arguments[i]}); copied != copy_of.end())
            node.arguments[i] = copied->second;
        return to.add(std::move(node));
      };
      const bool is_view = kind(g_[n].op) == OpKind::kView && p_.part_of(n) < 0;
      if (is_view) copied_for[at(n)] = copied_for[at(g_[n].arguments[0])];
      const NodeId own = add(p_.part_of(n));
      for (const int part : copied_for[at(n)]) copy_of[{part, n}] = add(part);
      return own;
    });
    return without_dead_nodes(made, copy_of);
  }

  /// An original that nobody reads any more goes; `simplify` would make copies one again.
  static CopiedGraph without_dead_nodes(const Graph& g, const std::map<std::pair<int, NodeId>, NodeId>& copy_of) {
    const std::vector<bool> live = live_nodes(g);
    std::vector<NodeId> kept(g.nodes.size(), -1);
    GraphCopy to(g);
    CopiedGraph r;
    r.graph = to.copied([&](NodeId n, Node node) { return kept[at(n)] = live[at(n)] ? to.add(std::move(node)) : -1; });
    for (const auto& [where, copy] : copy_of)
      if (live[at(copy)]) r.copies.push_back(kept[at(copy)]);
    std::sort(r.copies.begin(), r.copies.end());
    return r;
  }

  const Graph& g_;
  const Partition& p_;
  const FoldedGraph& folded_;
  std::map<int, std::set<NodeId>> copies_;  ///< by the part that gets them
};

}  // namespace

std::optional<CopiedGraph> with_copies(const Graph& g, const Partition& p, const FoldedGraph& folded) {
  return Copying(g, p, folded).run();
}

}  // namespace kfusion
