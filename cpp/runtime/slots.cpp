#include "runtime/slots.hpp"

#include <algorithm>

#include "kfusion/plan/joins.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kAlignment = 256;  // of a GPU's allocations; more than any load of ours wants

/// Memory in which blocks come and go.
class Arena {
 public:
  /// The lowest free place.
  std::int64_t allocate(std::int64_t bytes, std::size_t last_use) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::int64_t at = 0;
    auto next = blocks_.begin();
    for (; next != blocks_.end() && at + bytes > next->begin; ++next) at = next->end;
    blocks_.insert(next, {at, at + bytes, last_use});
    bytes_ = std::max(bytes_, at + bytes);
    return at;
  }

  /// Frees what no step from `step` on uses.
  void free_before(std::size_t step) {
    std::erase_if(blocks_, [&](const Block& b) { return b.last_use < step; });
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Block {
    std::int64_t begin, end;
    std::size_t last_use;
  };
  std::vector<Block> blocks_;  // by address
  std::int64_t bytes_ = 0;
};

/// By node: the last group that reads it.
std::map<NodeId, std::size_t> last_uses(const Plan& plan) {
  std::map<NodeId, std::size_t> last;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    for (const NodeId n : plan.groups[i].stores) last[stored_in(plan.folded, n)] = i;
    for (const Load& load : plan.groups[i].loads) last[load.access.base] = i;
  }
  return last;
}

}  // namespace

NodeId stored_for(const Plan& plan, std::size_t output) {
  return plan.folded.value[static_cast<std::size_t>(plan.graph.outputs[output].node)].base;
}

Slots assign_slots(const Plan& plan) {
  Slots slots;
  for (NodeId n = 0; n < std::ssize(plan.graph.nodes); ++n)
    if (plan.graph[n].op == Op::input) slots.of[n] = slots.inputs++;
  slots.outputs = static_cast<int>(plan.graph.outputs.size());
  for (int i = 0; i < slots.outputs; ++i) {
    const NodeId stored = stored_for(plan, static_cast<std::size_t>(i));
    const Op op = plan.graph[stored].op;
    if (kind(op) == OpKind::kSource && op != Op::input) continue;  // empty: kernels store others, and may read this one
    const auto [at, fresh] = slots.of.emplace(stored, slots.inputs + i);
    const int first = at->second - slots.inputs;  // < 0: an empty input, which no kernel copies
    if (!fresh && first >= 0) slots.repeated.emplace_back(first, i);
  }
  const auto last = last_uses(plan);
  Arena arena;
  slots.released.resize(plan.groups.size());
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    arena.free_before(i);
    for (const NodeId stored : plan.groups[i].stores) {
      const NodeId n = stored_in(plan.folded, stored);
      const int slot = slots.end();
      if (!slots.of.emplace(n, slot).second) continue;
      const auto* const backend = static_cast<const Backend*>(plan.groups[i].executor);
      if (backend && backend->keeps(plan.graph[n])) {
        slots.offsets.push_back(kKept);
        slots.released[last.at(n)].push_back(slot);
        continue;
      }
      const Node& node = plan.graph[n];
      const std::int64_t size = product(plan.computed[static_cast<std::size_t>(n)]);
      slots.offsets.push_back(arena.allocate(size * static_cast<std::int64_t>(item_bytes(node.dtype)), last.at(n)));
    }
  }
  slots.bytes = arena.bytes();
  return slots;
}

}  // namespace kfusion
