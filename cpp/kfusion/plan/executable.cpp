#include "kfusion/plan/executable.hpp"

#include <algorithm>

namespace kfusion {
namespace {

/// relu, then what layer normalisation over the last axis consists of, as `layernorm` builds it. The casts between a
/// half type and its statistics in float32 are the kernel's own.
bool is_relu_layernorm(const Graph& g, const Group& group) {
  if (group.kind != GroupKind::kRows || group.stores.size() != 1 || group.reduced.size() != 1) return false;
  std::vector<Op> ops;
  for (const NodeId n : group.nodes)
    if (g[n].op != Op::cast) ops.push_back(g[n].op);
  const std::vector<Op> statistics = {Op::relu, Op::mean, Op::subtract, Op::square, Op::mean, Op::add};
  if (ops.size() < statistics.size() || !std::equal(statistics.begin(), statistics.end(), ops.begin())) return false;
  const DType stored = g[group.stores[0]].dtype;
  if (!is_float(stored) || g[group.nodes[0]].dtype != stored) return false;
  const std::vector<Op> rest(ops.begin() + static_cast<std::ptrdiff_t>(statistics.size()), ops.end());
  const std::vector<std::vector<Op>> endings = {{}, {Op::multiply}, {Op::add}, {Op::multiply, Op::add}};
  return std::any_of(endings.begin(), endings.end(), [&](const std::vector<Op>& affine) {
    std::vector<Op> by_division = {Op::sqrt, Op::divide}, by_root = {Op::rsqrt, Op::multiply};
    by_division.insert(by_division.end(), affine.begin(), affine.end());
    by_root.insert(by_root.end(), affine.begin(), affine.end());
    return rest == by_division || rest == by_root;
  });
}

std::string_view what(GroupKind kind) {
  switch (kind) {
    case GroupKind::kMatmul:
      return "a matrix product with an epilogue";
    case GroupKind::kConv2d:
      return "a convolution with an epilogue";
    case GroupKind::kAttention:
      return "attention";
    case GroupKind::kContractionReduction:
      return "a contraction that is reduced where it is made";
    case GroupKind::kGather:
      return "gathering";
    case GroupKind::kRows:
    case GroupKind::kColumns:
    case GroupKind::kFullReduction:
      return "these reductions";
    default:
      return "these elementwise operations";
  }
}

}  // namespace

void mark_executable(const Graph& g, Group& group) {
  group.executable = is_relu_layernorm(g, group);
  if (!group.executable) group.missing = "this version has no kernel for " + std::string(what(group.kind));
}

}  // namespace kfusion
