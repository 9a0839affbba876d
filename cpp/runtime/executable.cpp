#include "runtime/executable.hpp"

#include <algorithm>
#include <limits>

#include "kfusion/error.hpp"
#include "kfusion/interrupt.hpp"
#include "kfusion/lower/layouts.hpp"
#include "kfusion/room.hpp"
#include "runtime/backend.hpp"
#include "runtime/lent.hpp"
#include "runtime/parameters.hpp"
#include "runtime/slots.hpp"
#include "runtime/sources.hpp"
#include "runtime/views.hpp"

namespace kfusion {
namespace {

const Access& access_of(const Plan& plan, NodeId n) { return plan.folded.value[static_cast<std::size_t>(n)]; }

bool is_c_order(const Node& n, const Extents& strides) { return is_c_contiguous(view_of(n, strides)); }

constexpr std::size_t kFewSlots = 16;

/// How a kernel sees one of its arrays.
struct Seeing {
  std::size_t slot;
  bool stores;
  bool is_mapped;  ///< an elementwise kernel, or one that reads first, whose element i is at:
  Extents strides;
  std::int64_t offset;
  std::size_t item_bytes;

  /// An element for each point that the kernel goes to.
  bool is_full() const { return !strides.empty() && std::ranges::find(strides, 0) == strides.end(); }
  bool same_elements(const Seeing& o) const {
    return is_mapped && o.is_mapped && strides == o.strides && offset == o.offset && item_bytes == o.item_bytes;
  }
};

/// What a step reads and stores. A library's function may fail when it runs.
struct Use {
  std::vector<Seeing> seen;
  bool may_fail = false;
  bool may_fail_midway = false;  ///< after it has stored something: a position may be outside of a table

  /// Whether it is elementwise, and stores into one slot where it has read the same element of the other, or into
  /// neither.
  bool may_take(std::size_t stored, std::size_t read) const {
    const auto stores_it = [&](const Seeing& s) { return s.stores && s.slot == stored; };
    const auto to = std::ranges::find_if(seen, stores_it);
    return to != seen.end() && std::ranges::all_of(seen, [&](const Seeing& s) {
             return (s.slot != read && s.slot != stored) || s.same_elements(*to);
           });
  }
};

}  // namespace

struct Executable::Parts {
  Place place;
  Slots slots;
  std::vector<SourceValue> sources;  ///< in slots of their own, the last ones
  std::vector<StepPointer> steps;
  std::vector<std::vector<Start>> starts;      ///< by step: slots that get their address before
  std::vector<std::vector<int>> released;      ///< by step: those whose memory no later one uses
  std::vector<std::vector<int>> first_stored;  ///< by step: the slots of outputs that no earlier one stores into
  std::size_t workspace_at = 0, bytes = 0;     ///< where the steps' own memory begins; all memory of a run
  std::vector<Parameter> parameters;           ///< as the kernels number them
  std::vector<std::int64_t> output_bytes;
  std::vector<Use> uses;  ///< by step
};

namespace {

Extents all_strides(const Operand& o) {
  Extents strides = o.kept;
  strides.insert(strides.end(), o.reduced.begin(), o.reduced.end());
  return strides;
}

View seen_view(const Node& n, const Access& a, Place place) {
  Node as_seen = n;
  as_seen.shape = a.shape;
  View v = view_of(as_seen, a.strides);
  v.place = place;
  return v;
}

}  // namespace

/// The groups of a plan, one after another, for whoever makes steps of them.
class Executable::Maker final : public StepRequest {
 public:
  Maker(Parts& parts, const Plan& plan, OutputStrides outputs, bool aligned)
      : parts_(parts),
        plan_(plan),
        lowering_(plan, std::move(outputs)),
        aligned_(aligned),
        step_of_(plan.groups.size(), -1) {}

  void add_step(int index) {
    index_ = index;
    if (is_loops(group().pattern) && product(group().domain) == 0) return;
    const auto* const backend = static_cast<const Backend*>(group().executor);
    if (!backend) throw ValueError("kfusion: a kernel of this plan cannot run: " + group().missing);
    parts_.uses.emplace_back().may_fail = !is_loops(group().pattern);
    parts_.steps.push_back(backend->make_step(*this));
    if (parts_.steps.back()->reads_first())
      for (Seeing& seen : parts_.uses.back().seen) seen.is_mapped = seen.is_full();
    step_of_[at(index)] = std::ssize(parts_.steps) - 1;
  }

  /// When all steps are made: gives out the memory between them.
  void place_values_between() {
    Slots& slots = parts_.slots;
    place_values(slots, plan_, least_lent(), [&](std::size_t group, int stored, int read) {
      return step_of_[group] >= 0 && parts_.uses[at(step_of_[group])].may_take(at(stored), at(read));
    });
    parts_.starts.resize(parts_.steps.size());
    parts_.released.resize(parts_.steps.size());
    find_first_stored();
    std::int64_t last = -1;  // what a group without a step releases, the step before it does
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
      last = std::max(last, step_of_[i]);
      if (step_of_[i] >= 0) parts_.starts[at(last)] = slots.starts[i];
      for (const int slot : slots.released[i])
        if (last >= 0) parts_.released[at(last)].push_back(slot);
    }
  }

  const Plan& plan() const override { return plan_; }
  const Group& group() const override { return plan_.groups[static_cast<std::size_t>(index_)]; }
  Place place() const override { return parts_.place; }
  bool aligned() const override { return aligned_; }

  Loops loops() override {
    Loops l{lowering_.kernel(index_), {}, {}};
    number_parameters(l.kernel, parts_.parameters);
    for (const Operand& o : l.kernel.loads) l.loads.push_back(slot_of(o, l.kernel, false));
    for (const Table& t : l.kernel.tables) l.loads.push_back(slot_of_table(t));
    for (const Store& s : l.kernel.stores) l.stores.push_back(slot_of(s.to, l.kernel, true));
    return l;
  }

  Contracted contraction(BatchAxes axes) override { return contracted(lowering_.contraction(index_, axes)); }

  std::vector<Contracted> contractions() override {
    std::vector<Contracted> all;
    for (Contraction& c : lowering_.contractions(index_)) all.push_back(contracted(std::move(c)));
    return all;
  }

  Attended attention() override {
    Attended a{lowering_.attention(index_), {}, {}};
    Contraction &scores = a.attention.scores, &output = a.attention.output;
    a.scores = slots_of(scores), a.output = slots_of(output);
    for (const Product& p : scores.products) a.scores.left.push_back(slot_of_factor(p.left));
    for (const Store& s : output.epilogue.stores) a.output.stores.push_back(slot_of(s.to, output.epilogue, true));
    are_tiled();
    return a;
  }

  Access stored(NodeId n) const override { return lowering_.stored(n); }

  Seen value(NodeId n) override {
    const Node& node = plan_.graph[n];
    const Access& a = access_of(plan_, n);
    const auto [slot, fresh] = slot_in_memory(a.base);
    for (const bool stores : {false, true})  // which of the two it is the backend knows
      parts_.uses.back().seen.push_back({at(slot), stores, false, {}, 0, 0});
    return {slot, seen_view(node, a, place()), a.offset * static_cast<std::int64_t>(item_bytes(node.dtype)),
            a.base == n && !fresh, parts_.slots.is_between(slot) && parts_.slots.offset(slot) == kKept};
  }

 private:
  /// Where functions of the library run between kernels, their memory is one with ours: what they need while a value is
  /// not there, they have. Smaller values than some microseconds' work are not worth a call each.
  std::int64_t least_lent() const {
    constexpr std::int64_t kLeast = std::int64_t{1} << 22;
    if (lends_everywhere()) return 1;
    const bool lends = memory_of(place()).has_streams &&
                       std::ranges::any_of(parts_.steps, [](const StepPointer& s) { return s->runs_in_library(); });
    return lends ? kLeast : std::numeric_limits<std::int64_t>::max();
  }

  /// A step that sees an output before any other does stores it.
  void find_first_stored() {
    parts_.first_stored.resize(parts_.steps.size());
    std::vector<bool> known(at(parts_.slots.inputs + parts_.slots.outputs));
    std::fill_n(known.begin(), parts_.slots.inputs, true);
    for (std::size_t i = 0; i < parts_.uses.size(); ++i)
      for (const Seeing& s : parts_.uses[i].seen) {
        if (s.slot >= known.size() || known[s.slot]) continue;
        known[s.slot] = true;
        parts_.first_stored[i].push_back(static_cast<int>(s.slot));
      }
  }

  Contracted contracted(Contraction lowered) {
    Contracted c = slots_of(lowered);
    for (const Product& p : lowered.products) c.left.push_back(slot_of_factor(p.left));
    for (const Store& s : lowered.epilogue.stores) c.stores.push_back(slot_of(s.to, lowered.epilogue, true));
    c.contraction = std::move(lowered);
    are_tiled();
    return c;
  }

  /// Those of what is read but for left factors.
  Contracted slots_of(Contraction& lowered) {
    Contracted c;
    Kernel& k = lowered.epilogue;
    number_parameters(k, parts_.parameters);
    for (const Product& p : lowered.products) c.right.push_back(slot_of_factor(p.right));
    for (const Operand& o : k.loads) c.loads.push_back(lowered.product_of(o) < 0 ? slot_of(o, k, false) : -1);
    for (const Table& t : k.tables) c.loads.push_back(slot_of_table(t));
    return c;
  }

  /// Tiles are stored while others are read.
  void are_tiled() {
    for (Seeing& seen : parts_.uses.back().seen) seen.is_mapped = false;
  }

  int slot_of(const Operand& o, const Kernel& k, bool stores) {
    const int slot = parts_.slots.of.at(o.node);
    const bool is_mapped = k.kind == Pattern::kPointwise;
    parts_.uses.back().seen.push_back(
        {at(slot), stores, is_mapped, all_strides(o), o.offset, item_bytes(plan_.graph[o.node].dtype)});
    return slot;
  }

  int slot_of_factor(const Factor& f) {
    const int slot = slot_in_memory(f.node).slot;
    parts_.uses.back().seen.push_back({at(slot), false, false, {}, 0, 0});
    return slot;
  }

  struct InMemory {
    int slot;
    bool fresh;  ///< a constant or an iota, which was in none
  };
  InMemory slot_in_memory(NodeId n) {
    const auto last = parts_.slots.end() + static_cast<int>(parts_.sources.size());
    const auto [at, fresh] = parts_.slots.of.emplace(n, last);
    if (fresh) parts_.sources.emplace_back(plan_.graph[n], place());
    return {at->second, fresh};
  }

  /// Any of its elements may be read after any store.
  int slot_of_table(const Table& t) {
    const int slot = slot_in_memory(t.from.node).slot;
    Use& use = parts_.uses.back();
    use.seen.push_back({at(slot), false, false, {}, 0, 0});
    use.may_fail = use.may_fail_midway = true;
    return slot;
  }

  Parts& parts_;
  const Plan& plan_;
  const Lowering lowering_;
  bool aligned_;
  int index_ = 0;
  std::vector<std::int64_t> step_of_;  ///< by group; -1: none
};

Executable::Executable(Plan given, const Device& device, Place place, bool aligned, const OutputStrides& outputs) {
  const Plan plan = with_layouts(std::move(given), device);
  auto parts = std::make_unique<Parts>();
  parts->place = place;
  parts->slots = assign_slots(plan);
  OutputStrides strides = outputs;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const NodeId node = plan.graph.outputs[i].node;
    parts->output_bytes.push_back(plan.graph[node].nbytes());
    if (is_identity(access_of(plan, node)) && is_c_order(plan.graph[node], strides[i])) strides[i].clear();
  }
  Maker maker(*parts, plan, std::move(strides), aligned);
  for (int i = 0; i < std::ssize(plan.groups); ++i) {
    check_interrupt();
    maker.add_step(i);
  }
  maker.place_values_between();
  for (const StepPointer& step : parts->steps) {
    check_interrupt();
    step->finish();
  }
  std::size_t most = 0;
  for (const StepPointer& step : parts->steps) most = std::max(most, step->workspace_bytes());
  parts->workspace_at = static_cast<std::size_t>(parts->slots.bytes);
  parts->bytes = parts->workspace_at + most;
  parts_ = std::move(parts);
}

Executable::Executable(Executable&&) noexcept = default;
Executable::~Executable() = default;

void Executable::run(const Run& r) const {
  const Parts& p = *parts_;
  const Workspace memory(p.bytes, p.place, r.stream);
  Lent lent(r.library, p.place, r.stream);
  const auto inputs = static_cast<std::size_t>(p.slots.inputs), outputs = static_cast<std::size_t>(p.slots.outputs);
  const std::size_t between = p.slots.offsets.size();
  Room<std::byte*, kFewSlots> slots(inputs + outputs + between + p.sources.size());
  for (std::size_t i = 0; i < inputs; ++i) slots[i] = const_cast<std::byte*>(r.inputs[i]);
  for (std::size_t i = 0; i < outputs; ++i) slots[inputs + i] = r.outputs[i];
  for (std::size_t i = 0; i < between; ++i)
    slots[inputs + outputs + i] = p.slots.offsets[i] < 0 ? nullptr : memory.data() + p.slots.offsets[i];
  for (std::size_t i = 0; i < p.sources.size(); ++i) slots[inputs + outputs + between + i] = p.sources[i].data();
  Room<double, kFewSlots> parameters(p.parameters.size());
  for (std::size_t i = 0; i < p.parameters.size(); ++i) parameters[i] = p.parameters[i].value(r.parameters);

  std::byte* workspace = p.bytes > 0 ? memory.data() + p.workspace_at : nullptr;
  const auto is_left = [&](int slot) {  // to the run
    return !slots[at(slot)] && r.library && p.output_bytes[at(slot) - inputs] > 0;
  };
  const Frame frame{slots.data(), workspace, parameters.data(), p.place.index, r.stream, r.library};
  for (std::size_t i = 0; i < p.steps.size(); ++i) {
    for (const int slot : p.first_stored[i])
      if (is_left(slot) && !p.steps[i]->makes(slot)) slots[at(slot)] = r.library->make(slot);
    for (const Start& s : p.starts[i]) slots[at(s.slot)] = s.from < 0 ? lent.lend(s.slot, s.bytes) : slots[at(s.from)];
    p.steps[i]->run(frame);
    for (const int slot : p.released[i]) lent.release(slot);
  }
  for (int slot = p.slots.inputs; slot < p.slots.inputs + p.slots.outputs; ++slot)
    if (is_left(slot)) slots[at(slot)] = r.library->make(slot);
  for (const auto& [from, to] : p.slots.repeated) {
    const std::byte* stored = slots[inputs + at(from)];  // where the library may have put it
    memory_of(p.place).copy(slots[inputs + at(to)], stored, static_cast<std::size_t>(p.output_bytes[at(to)]),
                            p.place.index, r.stream);
  }
}

bool Executable::has_library_steps() const {
  return std::ranges::any_of(parts_->steps, [](const StepPointer& s) { return s->runs_in_library(); });
}

const Slots& Executable::slots() const { return parts_->slots; }

bool Executable::may_overwrite(std::size_t output, std::size_t input, bool part) const {
  const std::size_t stored = static_cast<std::size_t>(parts_->slots.inputs) + output;
  const auto stores_it = [&](const Seeing& s) { return s.stores && s.slot == stored; };
  const auto reads_it = [&](const Seeing& s) { return !s.stores && s.slot == input; };
  const auto begin = parts_->uses.begin(), end = parts_->uses.end();
  const auto has_store = [&](const Use& u) { return std::ranges::any_of(u.seen, stores_it); };
  const auto storing = std::find_if(begin, end, has_store);
  if (storing == end || storing->may_fail_midway || std::any_of(storing + 1, end, has_store)) return false;
  if (std::any_of(storing + 1, end, [&](const Use& u) { return u.may_fail || std::ranges::any_of(u.seen, reads_it); }))
    return false;
  if (part && std::any_of(begin, end, [&](const Use& u) { return std::ranges::any_of(u.seen, reads_it); }))
    return false;
  return storing->may_take(stored, input);
}

}  // namespace kfusion
