#include "execution/executable.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpu/buffer.hpp"
#include "execution/layout.hpp"
#include "execution/poison.hpp"
#include "execution/slots.hpp"
#include "execution/sources.hpp"
#include "execution/steps.hpp"
#include "kfusion/interrupt.hpp"
#include "kfusion/plan/executable.hpp"
#include "kfusion/room.hpp"

namespace kfusion {
namespace {

const Access& access_of(const Plan& plan, NodeId n) { return plan.folded.value[static_cast<std::size_t>(n)]; }

bool is_c_order(const Node& n, const Extents& strides) { return is_c_contiguous(view_of(n, strides)); }

constexpr std::size_t kFewSlots = 16;

/// The memory of one run.
class Workspace {
 public:
  Workspace(std::size_t bytes, Place place, cuda::Stream stream) {
    if (bytes == 0) return;
    if (place.cuda)
      data_ = device_.emplace(bytes, place.index, stream).data();
    else
      data_ = host_.emplace(bytes).data();
    poison(data_, bytes, place, stream);
  }
  std::byte* data() const { return data_; }

 private:
  std::optional<cpu::Buffer> host_;
  std::optional<cuda::Workspace> device_;
  std::byte* data_ = nullptr;
};

/// A float argument as a dtype has it.
struct Parameter {
  int number;
  DType dtype;
  bool operator==(const Parameter&) const = default;

  double value(const double* all) const { return is_float(dtype) ? rounded(all[number], dtype) : all[number]; }
};

/// How an elementwise kernel sees one of its arrays.
struct Mapped {
  std::size_t slot;
  Extents strides;
  std::int64_t offset;
};

}  // namespace

struct Executable::Parts {
  Place place;
  Slots slots;
  std::vector<SourceValue> sources;  ///< in slots of their own, the last ones
  std::vector<StepPointer> steps;
  std::size_t workspace_at = 0, bytes = 0;  ///< where the steps' own memory begins; all memory of a run
  std::vector<Parameter> parameters;        ///< as the kernels number them
  std::vector<std::int64_t> output_bytes;
  std::vector<Mapped> mapped;  ///< the operands of the only kernel, where it is elementwise

  int slot_of(const Plan& plan, NodeId base);
  void add_kernel(Kernel k, bool aligned);
  void add_library(const Plan& plan, const Group& group);
};

namespace {

Extents all_strides(const Operand& o) {
  Extents strides = o.kept;
  strides.insert(strides.end(), o.reduced.begin(), o.reduced.end());
  return strides;
}

/// Kernels number the parameters with their dtypes.
void number_parameters(Kernel& k, std::vector<Parameter>& parameters) {
  for (Constant& c : k.constants) {
    if (c.parameter < 0) continue;
    const Parameter wanted{c.parameter, c.dtype};
    const auto found = std::ranges::find(parameters, wanted);
    c.parameter = static_cast<int>(found - parameters.begin());
    if (found == parameters.end()) parameters.push_back(wanted);
  }
}

View seen_view(const Node& n, const Access& a, Place place) {
  Node as_seen = n;
  as_seen.shape = a.shape;
  View v = view_of(as_seen, a.strides);
  v.place = place;
  return v;
}

}  // namespace

void Executable::Parts::add_kernel(Kernel k, bool aligned) {
  if (k.rows() == 0 || k.cols() == 0) return;
  number_parameters(k, parameters);
  Operands operands;
  for (const Operand& o : k.loads) operands.loads.push_back(slots.of.at(o.node));
  for (const Store& s : k.stores) operands.stores.push_back(slots.of.at(s.to.node));
  if (k.kind == GroupKind::kPointwise) {
    const auto add = [&](const Operand& o) {
      mapped.push_back({static_cast<std::size_t>(slots.of.at(o.node)), all_strides(o), o.offset});
    };
    for (const Operand& o : k.loads) add(o);
    for (const Store& s : k.stores) add(s.to);
  }
  steps.push_back(place.cuda ? make_cuda_step(k, std::move(operands), aligned, place.index)
                             : make_cpu_step(k, std::move(operands)));
}

int Executable::Parts::slot_of(const Plan& plan, NodeId base) {
  const auto last = slots.inputs + slots.outputs + static_cast<int>(slots.offsets.size() + sources.size());
  const auto [at, fresh] = slots.of.emplace(base, last);
  if (fresh) sources.emplace_back(plan.graph[base], place);
  return at->second;
}

void Executable::Parts::add_library(const Plan& plan, const Group& group) {
  const NodeId n = group.nodes.at(0);
  const auto seen = [&](NodeId value) {
    const Access& a = access_of(plan, value);
    const auto item = static_cast<std::int64_t>(item_bytes(plan.graph[value].dtype));
    return Seen{slot_of(plan, a.base), seen_view(plan.graph[value], a, place), a.offset * item};
  };
  std::vector<Seen> arguments;
  for (const NodeId a : plan.graph[n].arguments) arguments.push_back(seen(a));
  steps.push_back(make_library_step(plan.graph[n], std::move(arguments), seen(n)));
}

Executable::Executable(const Plan& plan, Place place, bool aligned, const OutputStrides& outputs) {
  auto parts = std::make_unique<Parts>();
  parts->place = place;
  parts->slots = assign_slots(plan);
  OutputStrides strides = outputs;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const NodeId node = plan.graph.outputs[i].node;
    parts->output_bytes.push_back(plan.graph[node].nbytes());
    if (is_identity(access_of(plan, node)) && is_c_order(plan.graph[node], strides[i])) strides[i].clear();
  }
  for (int i = 0; i < std::ssize(plan.groups); ++i) {
    check_interrupt();
    const Group& group = plan.groups[static_cast<std::size_t>(i)];
    if (is_loops(group.kind))
      parts->add_kernel(lower(plan, i, strides), aligned);
    else
      parts->add_library(plan, group);
  }
  if (parts->steps.size() > 1) parts->mapped.clear();
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
  const auto inputs = static_cast<std::size_t>(p.slots.inputs), outputs = static_cast<std::size_t>(p.slots.outputs);
  const std::size_t between = p.slots.offsets.size();
  Room<std::byte*, kFewSlots> slots(inputs + outputs + between + p.sources.size());
  for (std::size_t i = 0; i < inputs; ++i) slots[i] = const_cast<std::byte*>(r.inputs[i]);
  for (std::size_t i = 0; i < outputs; ++i) slots[inputs + i] = r.outputs[i];
  for (std::size_t i = 0; i < between; ++i) slots[inputs + outputs + i] = memory.data() + p.slots.offsets[i];
  for (std::size_t i = 0; i < p.sources.size(); ++i) slots[inputs + outputs + between + i] = p.sources[i].data();
  Room<double, kFewSlots> parameters(p.parameters.size());
  for (std::size_t i = 0; i < p.parameters.size(); ++i) parameters[i] = p.parameters[i].value(r.parameters);

  std::byte* workspace = p.bytes > 0 ? memory.data() + p.workspace_at : nullptr;
  const Frame frame{slots.data(), workspace, parameters.data(), p.place.index, r.stream, r.library};
  for (const StepPointer& step : p.steps) step->run(frame);
  for (const auto& [from, to] : p.slots.repeated) {
    const auto bytes = static_cast<std::size_t>(p.output_bytes[static_cast<std::size_t>(to)]);
    if (p.place.cuda)
      cuda::copy(r.outputs[to], r.outputs[from], bytes, p.place.index, r.stream);
    else
      std::memcpy(r.outputs[to], r.outputs[from], bytes);
  }
}

bool Executable::may_overwrite(std::size_t output, std::size_t input) const {
  const std::size_t stored = static_cast<std::size_t>(parts_->slots.inputs) + output;
  const auto of = [](std::size_t slot) { return [slot](const Mapped& m) { return m.slot == slot; }; };
  const auto to = std::ranges::find_if(parts_->mapped, of(stored));
  return to != parts_->mapped.end() && std::ranges::all_of(parts_->mapped, [&](const Mapped& m) {
           return m.slot != input || (m.strides == to->strides && m.offset == to->offset);
         });
}

}  // namespace kfusion
