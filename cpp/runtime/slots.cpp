#include "runtime/slots.hpp"

#include <algorithm>
#include <set>

#include "kfusion/divide_up.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/joins.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kAlignment = 256;  // of a GPU's allocations; more than any load of ours wants

/// Memory in which blocks come and go.
class Arena {
 public:
  /// The lowest free place.
  std::int64_t allocate(std::int64_t bytes, std::size_t last_use) {
    if (bytes == 0) return 0;
    bytes = round_up(bytes, kAlignment);
    std::int64_t at = 0;
    auto next = blocks_.begin();
    for (; next != blocks_.end() && at + bytes > next->begin; ++next) at = next->end;
    blocks_.insert(next, {at, at + bytes, last_use});
    bytes_ = std::max(bytes_, at + bytes);
    return at;
  }

  /// The block there is used until a later step.
  void keep(std::int64_t begin, std::size_t last_use) {
    std::ranges::find(blocks_, begin, &Block::begin)->last_use = last_use;
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

/// Whether nobody but the run has what the library computes: a function may give what it keeps, or an argument.
bool is_runs_own(const Graph& g, NodeId n) {
  if (g[n].op == Op::library_result) n = g[n].arguments[0];
  if (g[n].op != Op::library_call) return true;
  return g.attributes<LibraryCallAttributes>(n).kernels_ns >= 0;  // an alternative
}

class Placing {
 public:
  Placing(Slots& slots, const Plan& plan, std::int64_t lent, const MayTake& may_take)
      : slots_(slots), plan_(plan), lent_(lent), may_take_(may_take), last_(last_uses(plan)) {
    slots_.starts.resize(plan.groups.size());
    slots_.released.resize(plan.groups.size());
    for (const auto& [node, slot] : slots.of)
      if (slot < slots.inputs && is_donated(node)) ends_[slot] = last_.contains(node) ? last_.at(node) : 0;
  }

  void run() {
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
      arena_.free_before(i);
      for (const NodeId stored : plan_.groups[i].stores) place(i, stored_in(plan_.folded, stored));
    }
    slots_.bytes = arena_.bytes();
    if (plan_.groups.empty()) return;  // of no elements: nothing runs, after which something could be given back
    for (const auto& [slot, end] : ends_) slots_.released[end].push_back(slot);
  }

 private:
  bool is_donated(NodeId n) const {
    const auto* const input = std::get_if<InputAttributes>(&plan_.graph[n].attributes);
    return input && input->donated;
  }

  std::int64_t bytes_of(NodeId n) const {
    const std::int64_t size = product(plan_.computed[at(n)]);
    return size * static_cast<std::int64_t>(item_bytes(plan_.graph[n].dtype));
  }

  std::int64_t& offset(int slot) { return slots_.offsets[at(slot - slots_.inputs - slots_.outputs)]; }

  void place(std::size_t group, NodeId n) {
    const int slot = slots_.of.at(n);
    if (!slots_.is_between(slot) || !placed_.insert(slot).second) return;
    if (offset(slot) == kKept) {
      ends_[slot] = last_.at(n);
      return;
    }
    const std::int64_t bytes = bytes_of(n);
    if (take(group, n, slot, bytes)) return;
    if (bytes == 0 || bytes < lent_) {
      offset(slot) = arena_.allocate(bytes, last_.at(n));
      return;
    }
    offset(slot) = kLent;
    slots_.starts[group].push_back({slot, -1, bytes});
    ends_[slot] = last_.at(n);
  }

  /// Puts the value where one lies that the group reads last. Whether there is one.
  bool take(std::size_t group, NodeId n, int slot, std::int64_t bytes) {
    if (bytes == 0 || writers_of(plan_.folded, n).size() != 1) return false;
    for (const Load& load : plan_.groups[group].loads) {
      const NodeId read = load.access.base;
      const auto from = slots_.of.find(read);
      if (from == slots_.of.end() || !may_end(read, from->second, group) || bytes_of(read) != bytes) continue;
      if (!may_take_(group, slot, from->second)) continue;
      taken_.insert(from->second);
      go_on(from->second, slot, group, last_.at(n));
      return true;
    }
    return false;
  }

  /// Whether the memory of a value is free for others when the group has read it.
  bool may_end(NodeId n, int slot, std::size_t group) const {
    if (last_.at(n) != group || taken_.contains(slot)) return false;
    if (slot < slots_.inputs) return is_donated(n);
    if (!slots_.is_between(slot)) return false;
    return slots_.offset(slot) != kKept || is_runs_own(plan_.graph, n);
  }

  void go_on(int from, int slot, std::size_t group, std::size_t last) {
    const bool is_in_arena = slots_.is_between(from) && slots_.offset(from) >= 0;
    offset(slot) = is_in_arena ? slots_.offset(from) : kTaken;
    if (is_in_arena) return arena_.keep(offset(slot), last);
    const auto known = owners_.find(from);
    const int owner = owners_[slot] = known == owners_.end() ? from : known->second;
    slots_.starts[group].push_back({slot, from, 0});
    ends_[owner] = last;
  }

  Slots& slots_;
  const Plan& plan_;
  std::int64_t lent_;
  const MayTake& may_take_;
  const std::map<NodeId, std::size_t> last_;
  Arena arena_;
  std::set<int> placed_, taken_;
  std::map<int, int> owners_;        ///< of slots that are kTaken: whose memory it is
  std::map<int, std::size_t> ends_;  ///< by slot that owns memory: the last group that uses it
};

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
  for (const Group& group : plan.groups) {
    const auto* const backend = static_cast<const Backend*>(group.executor);
    for (const NodeId stored : group.stores) {
      const NodeId n = stored_in(plan.folded, stored);
      if (slots.of.emplace(n, slots.end()).second)
        slots.offsets.push_back(backend && backend->keeps(plan.graph[n]) ? kKept : 0);
    }
  }
  return slots;
}

void place_values(Slots& slots, const Plan& plan, std::int64_t lent, const MayTake& may_take) {
  Placing(slots, plan, lent, may_take).run();
}

}  // namespace kfusion
