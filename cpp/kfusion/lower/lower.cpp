// The passes of lowering, in order.
#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "kfusion/lower/kernel.hpp"
#include "kfusion/lower/kernel_steps.hpp"
#include "kfusion/lower/outputs.hpp"
#include "kfusion/lower/schedule.hpp"

namespace kfusion {
namespace {

/// What a kernel is called: "relu_layernorm_mean" for the label "relu+layernorm.mean".
std::string kernel_name(const std::string& label) {
  std::string result;
  for (const char c : label) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word || (!result.empty() && result.back() != '_')) result += is_word ? c : '_';
  }
  const bool is_bad = result.empty() || std::isdigit(static_cast<unsigned char>(result[0])) != 0;
  return is_bad ? "kernel_" + result : result;
}

}  // namespace

Lowering::Lowering(const Plan& plan, OutputStrides outputs)
    : plan_(plan),
      outputs_(std::move(outputs)),
      labels_(plan.graph),
      values_(value_names(plan.graph)),
      output_of_(first_outputs(plan)) {}

std::string Lowering::name_of(const Group& group) const {
  return kernel_name(labels_.of(stages_of(plan_.graph, group)));
}

std::vector<Strided> Lowering::add_steps(const Group& group, Space& space, Steps& steps, Kernel& k) const {
  const std::vector<Stored> stored = stored_values(plan_, group, outputs_, output_of_, space);
  steps.add_all();
  std::vector<Strided> stores;
  for (const Stored& s : stored) {
    const auto* partial = std::get_if<PartialAttributes>(&plan_.graph[s.node].attributes);
    const Axes span = partial != nullptr ? space.reduced : space.spans.at(s.node);
    stores.push_back(seen_from(space, span, s.to, plan_.graph[s.node].dtype));
    k.stores.push_back({steps.step_of(s.node), {}, partial != nullptr ? partial->parts : 0});
  }
  return stores;
}

Kernel Lowering::kernel(int group_index) const {
  const Plan& plan = plan_;
  const Group& group = plan.groups[static_cast<std::size_t>(group_index)];
  if (!is_loops(group.pattern)) throw std::logic_error("kfusion: only loops are lowered");
  Kernel k;
  k.name = name_of(group);
  k.kind = group.pattern;
  Space space = space_of(group);
  Steps steps(plan, group, space, k);
  const std::vector<Strided> stores = add_steps(group, space, steps, k);
  const bool reduces =
      std::any_of(k.steps.begin(), k.steps.end(), [](const Step& s) { return s.kind == StepKind::kReduce; });
  if (!reduces && k.parts() > 0) throw std::logic_error("kfusion: partial sums without rows have no kernel");
  if (!reduces) space.reduced = 0;  // rows are points
  set_axes(k, space, {steps.loads(), steps.iotas(), steps.tables(), stores});
  set_schedule(k);
  if (reduces && k.kept.empty() && k.separate.sweeps == 1) k.kind = Pattern::kFullReduction;
  set_labels(k);
  return k;
}

Access Lowering::stored(NodeId n) const { return stored_at(plan_, n, outputs_, output_of_); }

void Lowering::set_labels(Kernel& k) const {
  const auto label = [&](NodeId node) { return node < 0 ? std::string() : values_[at(node)]; };
  for (Step& s : k.steps) s.label = label(s.node);
  for (Operand& o : k.loads) o.label = label(o.node);
  for (Table& t : k.tables) t.from.label = label(t.from.node);
  for (Store& s : k.stores) s.to.label = label(s.to.node);
}

}  // namespace kfusion
