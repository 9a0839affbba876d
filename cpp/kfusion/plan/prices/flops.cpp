#include "kfusion/plan/prices/flops.hpp"

#include <algorithm>
#include <initializer_list>

#include "kfusion/checked.hpp"
#include "kfusion/graph/powers.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/op_cost.hpp"

namespace kfusion {
namespace {

std::int64_t operations_in(std::initializer_list<std::int64_t> factors) {
  std::int64_t n = 1;
  for (const std::int64_t f : factors) n = checked_multiply(n, f, "operations");
  return n;
}

FlopCount counted(DType dtype, bool matrix, std::int64_t count) {
  return {dtype, matrix, count, static_cast<double>(count)};
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

}  // namespace

FlopCount flops_of(const Graph& g, NodeId id, std::int64_t times, const Device& device) {
  const Node& n = g[id];
  const auto argument = [&](std::size_t i) -> const Node& { return g[n.arguments[i]]; };
  switch (kind(n.op)) {
    case OpKind::kMap: {  // a condition comes first: the last argument is of the type that is computed with
      const DType dtype = argument(n.arguments.size() - 1).dtype;
      FlopCount f = counted(compute_dtype(dtype), false, operations_in({info(n.op).flops, std::min(times, n.size())}));
      f.work = static_cast<double>(info(n.op).flops) * static_cast<double>(times) * work_of_map(g, id, dtype, device);
      return f;
    }
    case OpKind::kReduce:
    case OpKind::kPartial:
      return counted(compute_dtype(argument(0).dtype), false,
                     operations_in({std::max(info(n.op).flops, 1), argument(0).size()}));
    case OpKind::kContraction: {
      const Extents& a = argument(0).shape;
      const Extents& w = argument(1).shape;
      const std::int64_t depth = n.op == Op::matmul ? a.back() : operations_in({w[1], w[2], w[3]});
      return counted(argument(0).dtype, true, operations_in({2, depth, n.size()}));
    }
    case OpKind::kLibrary:
      if (n.op == Op::library_call)
        return counted(argument(0).dtype, true, g.attributes<LibraryCallAttributes>(id).flops);
      return {};
    default:
      return {};
  }
}

double us_of(const FlopCount& f, const Device& device) { return f.work / peak_flops(device, f.dtype, f.matrix) * 1e6; }

}  // namespace kfusion
