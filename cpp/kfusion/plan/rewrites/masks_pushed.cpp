// Masks pushed below the maps of a product whose largest elements are wanted, so that the maps can follow the
// reduction: where(m, f(x), f(c)) is f(where(m, x, c)), and f(x) * m, of a mask of 0 and 1 and f(0) = 0, is f(x * m).
#include <algorithm>
#include <cmath>
#include <limits>

#include "kfusion/graph/constant.hpp"
#include "kfusion/graph/facts.hpp"
#include "kfusion/graph/match.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

constexpr int kFarthest = 64;  // operations between a product and its reduction

/// A mask whose value is made by maps that it may stand before.
struct Site {
  std::size_t value = 0;     ///< which argument of the mask
  std::vector<NodeId> maps;  ///< the last one first
  double other = 0;          ///< of where: what takes the place of what the first of them is of
};

class Masks : private GraphCopy {
 public:
  using GraphCopy::GraphCopy;

  std::optional<Graph> run() {
    return changed([&](NodeId n, const Node& node) -> std::optional<NodeId> {
      const auto site = site_of(n);
      return site ? std::optional(pushed(n, node, *site)) : std::nullopt;
    });
  }

 private:
  std::optional<Site> site_of(NodeId n) const {
    const bool selects = g_[n].op == Op::where, scales = g_[n].op == Op::multiply;
    if ((!selects && !scales) || !is_float(g_[n].dtype) || !is_reduced(n)) return std::nullopt;
    for (const std::size_t value : {selects ? std::size_t{1} : 0, selects ? std::size_t{2} : 1}) {
      const NodeId other = g_[n].arguments[(selects ? 3 : 1) - value];
      if (!is_of_product(g_[n].arguments[value])) continue;
      Site site{value, {}, 0};
      if (selects) {
        const NodeId c = known_constant(g_, other);
        if (c < 0) continue;
        site.other = g_.attributes<ConstantAttributes>(c).value;
        add_maps_of_selection(n, site);
      } else if (is_zero_or_one(g_, other)) {
        add_maps_of_scaling(n, site);
      }
      if (!site.maps.empty()) return site;
    }
    return std::nullopt;
  }

  /// Whether a maximum or minimum of n is all that is wanted of it.
  bool is_reduced(NodeId n) const {
    for (int depth = 0; depth < kFarthest && (n = readers().only(n)) >= 0; ++depth) {
      if (g_[n].op == Op::max || g_[n].op == Op::min) return true;
      if (kind(g_[n].op) != OpKind::kMap && kind(g_[n].op) != OpKind::kCast && kind(g_[n].op) != OpKind::kView)
        return false;
    }
    return false;
  }

  bool is_of_product(NodeId n) const {
    for (int depth = 0; depth < kFarthest && g_[n].op != Op::matmul; ++depth) {
      if (g_[n].arguments.empty() || kind(g_[n].op) == OpKind::kReduce) return false;
      n = *std::ranges::max_element(g_[n].arguments, {}, [&](NodeId a) { return g_[a].size(); });
    }
    return g_[n].op == Op::matmul;
  }

  /// Whether the mask can be computed over x in the place of n, a map of it that nothing else reads.
  bool is_passed(NodeId mask, NodeId n, NodeId x) const {
    return readers().only(n) >= 0 && g_[n].shape == g_[mask].shape && g_[x].shape == g_[mask].shape &&
           is_float(g_[x].dtype);
  }

  void add_maps_of_selection(NodeId mask, Site& site) const {
    NodeId n = g_[mask].arguments[site.value];
    while (is_elementwise(g_[n])) {
      const NodeId x = varying_argument(n);
      const auto before = x < 0 || !is_passed(mask, n, x) ? std::nullopt : before_map(n, site.other);
      if (!before) return;
      site.other = *before;
      site.maps.push_back(n);
      n = x;
    }
  }

  /// The x of f(x), or of x + c; -1 else.
  NodeId varying_argument(NodeId n) const {
    const NodeIds& a = g_[n].arguments;
    if (a.size() == 1) return a[0];
    if (g_[n].op != Op::add) return -1;
    return known_constant(g_, a[1]) >= 0 ? a[0] : known_constant(g_, a[0]) >= 0 ? a[1] : -1;
  }

  /// The x of which the map gives exactly `y`.
  std::optional<double> before_map(NodeId n, double y) const {
    const bool zero = y == 0 && !std::signbit(y);
    const auto if_so = [](bool so, double x) { return so ? std::optional(x) : std::nullopt; };
    switch (g_[n].op) {
      case Op::relu:
        return if_so(y >= 0 && !std::signbit(y), y);
      case Op::cast:
        return if_so(zero || std::isinf(y), y);
      case Op::log1p:
      case Op::expm1:
      case Op::sqrt:
      case Op::tanh:
      case Op::erf:
        return if_so(zero, 0);
      case Op::log:
        return if_so(zero, 1);
      case Op::exp:
        return if_so(zero, -std::numeric_limits<double>::infinity());
      case Op::add: {
        const NodeIds& a = g_[n].arguments;
        const NodeId c = std::max(known_constant(g_, a[0]), known_constant(g_, a[1]));
        const double value = g_.attributes<ConstantAttributes>(c).value;
        return if_so(value == y && std::isfinite(y), 0);
      }
      default:
        return std::nullopt;
    }
  }

  /// Maps that keep 0, give what is finite of what is, infinity of infinity, and are of nothing negative: 0 times any
  /// of their results is of 0 times x, NaN as well.
  void add_maps_of_scaling(NodeId mask, Site& site) const {
    NodeId n = g_[mask].arguments[site.value];
    while (true) {
      NodeId sum = -1, x = -1;
      const auto one = m::such([&](NodeId c) { return known_constant(g_, c) >= 0; });
      if (m::matches(g_, n, m::log(m::bind(sum, m::add(m::bind(x), one))))) {  // log(1 + x)
        if (before_map(sum, 1) != 0.0 || !is_passed(mask, n, x) || readers().only(sum) < 0) return;
        if (!is_never_negative(g_, x)) return;
        site.maps.insert(site.maps.end(), {n, sum});
        n = x;
        continue;
      }
      const bool widens = g_[n].op == Op::cast && item_bytes(g_[n].dtype) > item_bytes(g_[g_[n].arguments[0]].dtype);
      if (!widens && g_[n].op != Op::log1p && g_[n].op != Op::sqrt) return;
      x = g_[n].arguments[0];
      if (!is_passed(mask, n, x) || (!widens && !is_never_negative(g_, x))) return;
      site.maps.push_back(n);
      n = x;
    }
  }

  /// `mask`, a copy of n, over what the maps are of, in its dtype, and the maps of that.
  NodeId pushed(NodeId n, Node mask, const Site& site) {
    const NodeId x = varying_argument(site.maps.back());
    const DType dtype = g_[x].dtype;
    const std::size_t other = (g_[n].op == Op::where ? 3 : 1) - site.value;
    mask.arguments[site.value] = moved_[at(x)];
    if (g_[n].op == Op::where)
      mask.arguments[other] = add(constant_node(dtype, {site.other}));
    else
      mask.arguments[other] = in_dtype(mask.arguments[other], dtype, mask.stage);
    mask.dtype = dtype;
    NodeId value = add(std::move(mask));
    for (auto map = site.maps.rbegin(); map != site.maps.rend(); ++map) {
      Node node = g_[*map];
      const NodeId of = varying_argument(*map);
      for (NodeId& a : node.arguments) a = a == of ? value : moved_[at(a)];
      value = add(std::move(node));
    }
    return value;
  }
};

}  // namespace

std::optional<Graph> masks_pushed(const Graph& g, const Device&) {
  const bool has_product = std::ranges::any_of(g.nodes, [](const Node& n) { return n.op == Op::matmul; });
  return has_product ? Masks(g).run() : std::nullopt;
}

}  // namespace kfusion
