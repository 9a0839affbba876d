// What the kernel of some parts is, and whether an executor runs it.
#include <algorithm>
#include <iterator>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

Pattern Partition::pattern_of(const Part& part, const std::vector<NodeId>& nodes) const {
  if (part.attention) return Pattern::kAttention;
  const auto has = [&](Op op) { return std::ranges::any_of(nodes, [&](NodeId n) { return g_[n].op == op; }); };
  const bool contracts = has(Op::matmul), convolves = has(Op::conv2d);
  const bool reduces = std::ranges::any_of(nodes, [&](NodeId n) { return work_kind(n) == WorkKind::kReduce; });
  if ((contracts || convolves) && reduces) return Pattern::kContractionReduction;
  if (contracts) return Pattern::kMatmul;
  if (convolves) return Pattern::kConv2d;
  if (part.kind == WorkKind::kLibrary) return Pattern::kLibraryCall;
  if (!reduces || part.reduced == 0)
    return nodes.size() == 1 && part.kind == WorkKind::kCopy ? Pattern::kCopy : Pattern::kPointwise;
  if (part.whole) return Pattern::kFullReduction;
  const Axes kept = part.kept();
  return (kept & (kept + 1)) == 0 ? Pattern::kRows : Pattern::kColumns;
}

std::vector<NodeId> Partition::nodes_of(const std::vector<int>& parts) const {
  std::vector<NodeId> nodes;
  for (const int p : parts) nodes.insert(nodes.end(), part(p).nodes.begin(), part(p).nodes.end());
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

/// Why no executor runs these parts as one kernel. Loops have one on every device, but for what gathers and reduces.
std::optional<std::string> Partition::why_no_kernel(Pattern pattern, const std::vector<int>& parts) const {
  const bool gathers = std::ranges::any_of(parts, [&](int p) { return part(p).gathers; });
  if (is_anything_possible(parts) || (is_loops(pattern) && !gathers)) return std::nullopt;
  return why_no_kernel(options_.executors, pattern, parts);
}

/// Whether a product of the parts is to be apart from what an executor would take with it.
bool Partition::is_apart(const Executor* executor, const std::vector<int>& parts) const {
  const auto found = options_.apart.find(executor);
  if (found == options_.apart.end()) return false;
  return std::ranges::any_of(parts, [&](int p) {
    return part(p).kind == WorkKind::kContraction && std::ranges::any_of(part(p).nodes, [&](NodeId n) {
             return work_kind(n) == WorkKind::kContraction && found->second.contains(name_in_variants(g_, n));
           });
  });
}

/// Whether kernels count that nobody has.
bool Partition::is_anything_possible(const std::vector<int>& parts) const {
  return options_.beyond_executors() &&
         std::ranges::none_of(options_.apart, [&](const auto& entry) { return is_apart(entry.first, parts); });
}

std::optional<std::string> Partition::why_no_kernel(Executors asked, Pattern pattern,
                                                    const std::vector<int>& parts) const {
  const bool takes_longer = std::erase_if(asked, [&](const Executor* e) { return is_apart(e, parts); }) > 0;
  if (takes_longer) std::erase(asked, &anyone());
  const std::vector<NodeId> nodes = nodes_of(parts);
  std::vector<NodeId> stores;
  std::ranges::copy_if(nodes, std::back_inserter(stores), [&](NodeId n) {
    return is_output(n) ||
           std::ranges::any_of(readers(n), [&](NodeId r) { return std::ranges::count(parts, part_of(r)) == 0; });
  });
  auto why = why_no_executor(asked, {g_, folded_, pattern, nodes, stores}, device_);
  return why && takes_longer ? std::optional<std::string>(kTakesLonger) : std::move(why);
}

bool Partition::has_kernel(Pattern pattern, const std::vector<int>& parts) const {
  Executors real = options_.executors;
  std::erase(real, &anyone());
  return !why_no_kernel(real, pattern, parts);
}

bool Partition::is_run(Pattern pattern, const std::vector<int>& parts, const std::vector<Edge>& edges) {
  const auto why = why_no_kernel(pattern, parts);
  for (const Edge& e : edges)
    if (why) missing_.push_back({e.producer, e.consumer, *why});
  return !why;
}

const std::string* Partition::why_no_pattern(const Edge& e) const {
  const auto found = std::ranges::find_if(missing_, [&](const Missing& m) {
    return part_of(m.producer) == part_of(e.producer) && part_of(m.consumer) == part_of(e.consumer);
  });
  return found == missing_.end() ? nullptr : &found->why;
}

}  // namespace kfusion
