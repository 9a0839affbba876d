#include "kfusion/lower/outputs.hpp"

#include <algorithm>
#include <stdexcept>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// How a result is seen: its axes in the order in which what it is a view of is computed.
std::vector<std::size_t> axes_in_order(const Access& view) {
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] != 1) axes.push_back(i);
  }
  std::sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) { return view.strides[a] > view.strides[b]; });
  return axes;
}

/// Where the elements of a value lie, in its C order, that is to be seen through `view` with `strides`.
Access stored_through(const Access& view, const Extents& strides) {
  Access to{view.base, view.base_size, {}, {}, 0};
  for (const std::size_t axis : axes_in_order(view)) {
    to.shape.push_back(view.shape[axis]);
    to.strides.push_back(strides[axis]);
  }
  return to;
}

/// All of the value, each element once.
bool is_reordering(const Access& view) {
  Extents strides;
  for (const std::size_t axis : axes_in_order(view)) strides.push_back(view.strides[axis]);
  const Access to = stored_through(view, view.strides);
  return is_identity({view.base, view.base_size, to.shape, strides, view.offset});
}

const Access& view_of(const Plan& plan, const Output& o) { return plan.folded.value[static_cast<std::size_t>(o.node)]; }

/// Whether `n`, which `group` stores and nobody else reads, can be stored to any strides of the output that sees it as
/// `view`. Then the space is cut as if to the least convenient ones.
bool can_lie_anyhow(const Plan& plan, const Group& group, NodeId n, const Access& view, Space& space) {
  if (group.executor && group.executor->lays_channels_last())
    return is_reordering(view) && without_ones(plan.computed[at(n)]) == stored_through(view, view.strides).shape;
  return is_loops(group.pattern) && is_reordering(view) &&
         cut_space(space, space.spans.at(n), stored_through(view, view.strides).shape);
}

}  // namespace

std::vector<int> first_outputs(const Plan& plan) {
  const auto& outputs = plan.graph.outputs;
  std::vector<int> first(plan.graph.nodes.size(), -1);
  for (auto i = static_cast<int>(outputs.size()); i-- > 0;) first[at(view_of(plan, outputs[at(i)]).base)] = i;
  return first;
}

Access stored_at(const Plan& plan, NodeId n, const OutputStrides& outputs, const std::vector<int>& output_of) {
  const int i = outputs.empty() ? -1 : output_of[at(n)];
  if (i >= 0 && !outputs[at(i)].empty())
    return stored_through(view_of(plan, plan.graph.outputs[at(i)]), outputs[at(i)]);
  const Access& seen = plan.folded.value[at(n)];
  return stored_in(plan.folded, n) == n && is_identity(seen) ? identity_access(n, plan.computed[at(n)]) : seen;
}

std::vector<Stored> stored_values(const Plan& plan, const Group& group, const OutputStrides& outputs,
                                  const std::vector<int>& output_of, Space& space) {
  std::vector<Stored> result;
  for (const NodeId n : group.stores) {
    if (plan.graph[n].op == Op::partial_sums) {  // of a part: as the axes of a row lie
      const Extents row = extents_of(space.extents, space.reduced);
      result.push_back({n, {n, plan.graph[n].size(), row, identity_access(n, row).strides}});
      continue;
    }
    Access to = stored_at(plan, n, outputs, output_of);
    if (!cut_space(space, space.spans.at(n), collapsed(to).shape)) {
      throw std::logic_error("kfusion: a result cannot lie as it should");
    }
    result.push_back({n, std::move(to)});
  }
  return result;
}

OutputStrides required_strides(const Plan& plan) {
  const auto& outputs = plan.graph.outputs;
  std::vector<int> reads(plan.graph.nodes.size());  // by kernels and by outputs
  for (const Group& group : plan.groups) {
    for (const Load& l : group.loads) ++reads[static_cast<std::size_t>(l.access.base)];
  }
  for (const Output& o : outputs) ++reads[static_cast<std::size_t>(view_of(plan, o).base)];
  const std::vector<int> output_of = first_outputs(plan);
  std::vector<bool> is_free(plan.graph.nodes.size());
  for (const Group& group : plan.groups) {
    Space space = space_of(group);
    for (const NodeId n : group.stores) {
      const int i = output_of[at(n)];
      if (i < 0 || reads[static_cast<std::size_t>(n)] > 1) continue;
      const Access& view = view_of(plan, outputs[static_cast<std::size_t>(i)]);
      is_free[static_cast<std::size_t>(n)] = can_lie_anyhow(plan, group, n, view, space);
    }
  }
  OutputStrides required;
  for (const Output& o : outputs) {
    const Access& view = view_of(plan, o);
    const bool is_empty = product(view.shape) == 0;
    required.push_back(is_empty || is_free[static_cast<std::size_t>(view.base)] ? Extents{} : view.strides);
  }
  return required;
}

bool lies_channels_last(const Plan& plan, std::size_t i) {
  const Access& view = view_of(plan, plan.graph.outputs[i]);
  const int group = plan.group_of[at(view.base)];
  const Executor* executor = group < 0 ? nullptr : plan.groups[at(group)].executor;
  if (!executor || !executor->lays_channels_last() || view.shape.size() != 4) return false;
  return std::ranges::any_of(plan.graph.nodes, [](const Node& n) {
    if (n.op != Op::input || n.shape.size() != 4 || n.shape[1] == 1) return false;
    const Extents& strides = std::get<InputAttributes>(n.attributes).strides;
    return !strides.empty() && strides[1] == 1;
  });
}

}  // namespace kfusion
