#include "kfusion/graph/powers.hpp"

#include "kfusion/graph/match.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {

int power_by_products(const Graph& g, NodeId id) {
  std::optional<double> exponent;
  if (!is_float(g[id].dtype) || !m::matches(g, id, m::power(m::value(), m::number(exponent)))) return 0;
  for (const int n : {3, 4, -2})
    if (*exponent == n) return n;
  return 0;
}

}  // namespace kfusion
