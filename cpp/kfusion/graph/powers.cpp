#include "kfusion/graph/powers.hpp"

namespace kfusion {

int power_by_products(const Graph& g, NodeId id) {
  const Node& node = g[id];
  if (node.op != Op::power || !is_float(node.dtype)) return 0;
  const Node& exponent = g[node.arguments[1]];
  if (exponent.op != Op::constant) return 0;
  const auto& literal = g.attributes<ConstantAttributes>(node.arguments[1]);
  if (literal.parameter >= 0) return 0;
  for (const int n : {3, 4, -2})
    if (literal.value == n) return n;
  return 0;
}

}  // namespace kfusion
