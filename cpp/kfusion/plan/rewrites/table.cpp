#include "kfusion/plan/rewrites/table.hpp"

#include <algorithm>

#include "kfusion/graph/match.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/partition/partial_sums.hpp"

namespace kfusion {
namespace {

// When.

bool always(const PlanOptions&, const Device&) { return true; }
bool unnamed(const PlanOptions& options, const Device&) { return !options.names_kernels(); }
bool unnamed_on_gpu(const PlanOptions& options, const Device& device) {
  return unnamed(options, device) && !device.is_cpu;
}

// Accepted.

/// To a GPU, which reads neighbours best, elements a few apart cost more: reading an array in that way must save half
/// of all bytes.
constexpr std::int64_t kLeastRatio = 2;

bool if_faster(const Counted& chosen, const Counted& made, const Device&) { return made.us() < chosen.us(); }
bool if_faster_of_fewer_bytes(const Counted& chosen, const Counted& made, const Device& device) {
  return if_faster(chosen, made, device) && made.bytes() < chosen.bytes();
}
bool if_no_slower(const Counted& chosen, const Counted& made, const Device& device) {
  const bool saves = device.is_cpu || kLeastRatio * made.bytes() <= chosen.bytes();
  return saves && !made.exceeds(chosen) && made.us() <= chosen.us();
}
bool if_faster_with_kernels(const Counted& chosen, const Counted& made, const Device& device) {
  return if_faster(chosen, made, device) && has_kernels_for_partial_sums(made.plan());
}

// Patterns.

template <class P>
bool has(const Graph& g, NodeId n, P pattern) {
  return m::matches(g, n, pattern);
}
bool is_choice(const Graph& g, NodeId n) { return has(g, n, m::either(m::where(), m::multiply())); }
bool is_any_reduction(const Graph& g, NodeId n) { return kind(g[n].op) == OpKind::kReduce; }
bool is_reduction_of_reduction(const Graph& g, NodeId n) {
  return is_any_reduction(g, n) && is_any_reduction(g, g[n].arguments[0]);
}
bool is_sum(const Graph& g, NodeId n) { return has(g, n, m::sum()); }
bool is_positions(const Graph& g, NodeId n) { return has(g, n, m::iota()); }
bool is_product(const Graph& g, NodeId n) { return has(g, n, m::matmul()); }
bool is_slice(const Graph& g, NodeId n) { return has(g, n, m::slice()); }
bool is_convolution(const Graph& g, NodeId n) { return has(g, n, m::conv2d()); }
bool is_gather_of_computed(const Graph& g, NodeId n) {
  const auto is_passed = [](const Node& x) {
    return is_elementwise(x) || x.op == Op::broadcast || x.op == Op::transpose;
  };
  return kind(g[n].op) == OpKind::kGather && is_passed(g[g[n].arguments[0]]);
}

constexpr Rewrite kRewrites[] = {
    // name, pattern, replacement, when, accepted
    {"masks pushed below maps", is_choice, masks_pushed, unnamed, nullptr},
    {"reductions joined", is_reduction_of_reduction, everywhere<joined_reduction>, unnamed, if_faster_of_fewer_bytes},
    {"reductions split", is_any_reduction, reductions_split, unnamed, if_faster_of_fewer_bytes},
    {"positions computed where they are read", is_positions, positions_widened, unnamed, if_faster},
    {"short reductions written out", is_any_reduction, reductions_unrolled, always, if_no_slower},
    {"products cut in halves", is_slice, products_cut, unnamed, if_faster},
    {"convolutions of pixels as products", is_convolution, pointwise_convolutions, unnamed_on_gpu, if_faster},
    {"rows of factors aligned", is_product, rows_aligned, unnamed_on_gpu, if_faster},
    {"gathers pushed below maps", is_gather_of_computed, gathers_pushed, always, if_faster},
    {"sums of products in parts", is_sum, products_summed_in_parts, unnamed, if_faster_with_kernels},
    {"sums of rows in parts", is_sum, rows_summed_in_parts, unnamed, if_faster_with_kernels},
};

}  // namespace

std::span<const Rewrite> rewrites() { return kRewrites; }

std::optional<Graph> Rewrite::of(const Graph& g, const Device& device) const {
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
    if (pattern(g, n)) return replacement(g, device);
  return std::nullopt;
}

}  // namespace kfusion
