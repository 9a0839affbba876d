// Products of which elementwise work reads two halves, as gates in models do: x @ w with both weights in one matrix.
// The halves of their columns, plus halves of a bias, are products of halves of the right factor.
#include <algorithm>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

constexpr int kMostMaps = 8;

/// A product, and maps of it: a bias, a cast.
struct Halved {
  NodeId product = -1;
  std::vector<NodeId> maps;  ///< the first one first
};

class Cutting : private GraphCopy {
 public:
  using GraphCopy::GraphCopy;

  std::optional<Graph> run() {
    return changed([&](NodeId n, const Node& node) -> std::optional<NodeId> {
      const auto halved = node.op == Op::slice ? halved_by(n) : std::nullopt;
      return halved ? std::optional(half(n, *halved)) : std::nullopt;
    });
  }

 private:
  const SliceAttributes& slice(NodeId n) const { return g_.attributes<SliceAttributes>(n); }

  /// The product that slice `n` takes one half of the columns of.
  std::optional<Halved> halved_by(NodeId n) const {
    const NodeId value = g_[n].arguments[0];
    const auto halved = halved_value(value);
    const NodeIds& readers = this->readers().of(value);
    if (!halved || this->readers().is_result(value) || readers.size() != 2) return std::nullopt;
    const NodeId one = readers[0], other = readers[1];
    const bool halves = is_half(one, value) && is_half(other, value) && slice(one).start != slice(other).start;
    return halves ? halved : std::nullopt;
  }

  bool is_half(NodeId n, NodeId of) const {
    if (g_[n].op != Op::slice) return false;
    const Extents& whole = g_[of].shape;
    const SliceAttributes& s = slice(n);
    const std::size_t last = whole.size() - 1;
    for (std::size_t i = 0; i < last; ++i)
      if (s.start[i] != 0 || s.step[i] != 1 || g_[n].shape[i] != whole[i]) return false;
    const std::int64_t size = g_[n].shape[last];
    return s.step[last] == 1 && 2 * size == whole[last] && size > 0 && (s.start[last] == 0 || s.start[last] == size);
  }

  std::optional<Halved> halved_value(NodeId n) const {
    Halved h;
    for (; g_[n].op != Op::matmul; n = mapped(n)) {
      if (mapped(n) < 0 || std::ssize(h.maps) == kMostMaps) return std::nullopt;
      h.maps.push_back(n);
    }
    std::ranges::reverse(h.maps);
    h.product = n;
    return h;
  }

  /// What the map n is of, if all else that it reads is a vector along columns or a scalar; -1 where n is no such map.
  NodeId mapped(NodeId n) const {
    const OpKind k = kind(g_[n].op);
    if (k != OpKind::kMap && k != OpKind::kCast) return -1;
    NodeId found = -1;
    for (const NodeId a : g_[n].arguments) {
      if (is_vector(a, n) || g_[a].shape.empty()) continue;
      if (found >= 0 || g_[a].shape != g_[n].shape || readers().only(a) < 0) return -1;
      found = a;
    }
    return found;
  }

  bool is_vector(NodeId a, NodeId n) const {
    return g_[n].shape.size() > 1 && g_[a].shape.size() == 1 && g_[a].shape[0] == g_[n].shape.back();
  }

  NodeId half(NodeId n, const Halved& h) {
    const std::int64_t start = slice(n).start.back(), size = g_[n].shape.back();
    Node product = g_[h.product];
    product.shape.back() = size;
    product.arguments = {moved_[at(product.arguments[0])],
                         part(moved_[at(product.arguments[1])], start, size, product.stage)};
    NodeId value = add(std::move(product)), whole = h.product;
    for (const NodeId m : h.maps) {
      Node map = g_[m];
      map.shape.back() = size;
      for (NodeId& a : map.arguments)
        a = a == whole ? value : is_vector(a, m) ? part(moved_[at(a)], start, size, map.stage) : moved_[at(a)];
      value = add(std::move(map));
      whole = m;
    }
    return value;
  }

  /// Along the last axis.
  NodeId part(NodeId n, std::int64_t start, std::int64_t size, StageId stage) {
    Extents shape = to_[n].shape;
    SliceAttributes s{Extents(shape.size(), 0), Extents(shape.size(), 1)};
    s.start.back() = start;
    shape.back() = size;
    return view_of(n, Op::slice, std::move(shape), stage, std::move(s));
  }
};

}  // namespace

std::optional<Graph> products_cut(const Graph& g, const Device&) { return Cutting(g).run(); }

}  // namespace kfusion
