// Executables by graph: functions that do the same, such as a notebook's cell that is run again, share them.
#include <algorithm>
#include <mutex>
#include <span>
#include <tuple>
#include <unordered_map>

#include "cpu/isa.hpp"
#include "cpu/loops/loops_by.hpp"
#include "cpu/platform.hpp"
#include "kfusion/ops/names.hpp"
#include "python/fuse/entry.hpp"
#include "python/fuse/measured_times.hpp"
#include "python/gil.hpp"
#include "python/records/plan_options.hpp"
#include "runtime/views.hpp"

namespace kfusion::fuse {
namespace {

namespace compiled_detail {

constexpr std::size_t kMost = 256;

struct Wanted {
  Graph graph;
  PlanOptions options;
  bool aligned;
  OutputStrides outputs;  ///< as the caller wants them, one for each; empty where it is left to us
  cpu::Isa isa = cpu::isa();
  cpu::LoopsBy loops = cpu::loops_by();

  bool operator==(const Wanted& o) const {
    const auto tie = [](const PlanOptions& p) {
      return std::tie(p.fuse, p.allow, p.forbid, p.max_inputs, p.max_outputs, p.executors, p.measured);
    };
    return aligned == o.aligned && outputs == o.outputs && isa == o.isa && loops == o.loops &&
           tie(options) == tie(o.options) && graph == o.graph && graph.alternatives == o.graph.alternatives;
  }
};

struct Hash {
  std::size_t operator()(const Wanted& w) const { return hash(w.graph); }
};

struct Shared {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<Wanted, std::shared_ptr<const Compiled>, Hash> all;
};

Shared& shared() {
  static auto& s = *new Shared;
  return s;
}

Place place_of(const Graph& g) {
  const auto input = std::ranges::find(g.nodes, Op::input, &Node::op);
  return input == g.nodes.end() ? Place{} : input->place;
}

/// The strides of an array to write output `o` into; none for one that it does not fit, which is refused later.
Extents wanted_strides(const Node& o, const View& v) {
  const bool fits =
      v.dtype == o.dtype && std::ranges::equal(o.shape, std::span(v.shape, static_cast<std::size_t>(v.ndim)));
  return fits && !self_overlapping(v) ? element_strides(v) : Extents{};
}

std::vector<View> result_layouts(const Plan& plan, const OutputStrides& wanted, Place place) {
  const std::vector<View> inputs = input_views(plan.graph);
  const OutputStrides fixed = required_strides(plan);
  std::vector<View> layouts;
  for (std::size_t i = 0; i < plan.graph.outputs.size(); ++i) {
    const Node& n = plan.graph[plan.graph.outputs[i].node];
    if (!fixed[i].empty())
      layouts.push_back(view_of(n, fixed[i]));
    else if (!wanted[i].empty())
      layouts.push_back(view_of(n, wanted[i]));
    else
      layouts.push_back(lies_channels_last(plan, i) ? view_of(n, channels_last(n.shape)) : shared_layout(n, inputs));
    layouts.back().place = place;
    layouts.back().data = nullptr;
  }
  return layouts;
}

std::shared_ptr<const Compiled> make_once(const Wanted& w, const PlanOptions& options, const Device& device) {
  Plan plan = make_plan(w.graph, device, options);
  check_names(plan.graph, w.options);
  const Place place = place_of(w.graph);
  std::vector<View> layouts = result_layouts(plan, w.outputs, place);
  OutputStrides strides;
  for (const View& v : layouts) strides.push_back(element_strides(v));
  return std::make_shared<const Compiled>(device, Executable(std::move(plan), device, place, w.aligned, strides),
                                          std::move(layouts));
}

/// An executor may find only now that it has no kernel.
std::shared_ptr<const Compiled> make(const Wanted& w, const Device& device) {
  constexpr int kMostPlans = 100;
  PlanOptions options = w.options;
  for (int plans = 1;; ++plans) {
    try {
      return make_once(w, options, device);
    } catch (const NoSuchKernel& failure) {
      if (plans == kMostPlans) throw;
      std::erase_if(options.executors, [&](const Executor* e) { return e->name() == failure.without; });
    }
  }
}

}  // namespace compiled_detail
}  // namespace

using namespace compiled_detail;

std::shared_ptr<const Compiled> compiled(const Graph& graph, const Device& device, const PlanOptions& options,
                                         bool aligned, std::span<const Array* const> outs) {
  Wanted wanted{graph, options, aligned, OutputStrides(graph.outputs.size())};
  wanted.options.measured = measured_on(device);
  for (std::size_t i = 0; i < outs.size(); ++i)
    if (outs[i]) wanted.outputs[i] = wanted_strides(graph[graph.outputs[i].node], outs[i]->view);
  const Interruptible unlocked;
  Shared& s = shared();
  {
    const std::lock_guard lock(s.mutex);
    if (const auto found = s.all.find(wanted); found != s.all.end()) return found->second;
  }
  std::shared_ptr<const Compiled> made = make(wanted, device);
  const std::lock_guard lock(s.mutex);
  if (s.all.size() >= kMost) s.all.clear();  // functions keep what they use
  return s.all.emplace(std::move(wanted), std::move(made)).first->second;
}

}  // namespace kfusion::fuse
