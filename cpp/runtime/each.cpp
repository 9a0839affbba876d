#include "runtime/each.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"
#include "runtime/backend.hpp"

namespace kfusion {
namespace {

/// The place of a node among the inputs of a graph; -1: it is none.
int input_number(const Graph& g, NodeId node) {
  if (g[node].op != Op::input) return -1;
  return static_cast<int>(
      std::count_if(g.nodes.begin(), g.nodes.begin() + node, [](const Node& n) { return n.op == Op::input; }));
}

bool is_dense(const Operand& o) { return o.offset == 0 && o.kept.size() == 1 && o.kept[0] == 1; }

}  // namespace

void ArraySets::add(const std::vector<std::byte*>& arrays, std::int64_t elements) {
  if (elements == 0) return;
  addresses_.insert(addresses_.end(), arrays.begin(), arrays.end());
  elements_.push_back(elements);
  all_ += elements;
}

std::optional<EachRequest> each_request(const Plan& plan, Place place, bool aligned, const std::vector<int>& targets) {
  const Graph& g = plan.graph;
  if (plan.groups.size() != 1 || plan.groups[0].pattern != Pattern::kPointwise) return {};
  const auto arrays = static_cast<std::size_t>(std::ranges::count(g.nodes, Op::input, &Node::op));
  EachRequest request{Lowering(plan).kernel(0), {}, {}, arrays, place, aligned};
  const Kernel& k = request.kernel;
  if (!k.tables.empty() || !k.iotas.empty() || k.stores.size() != g.outputs.size()) return {};
  for (const Operand& o : k.loads) {
    request.loads.push_back(input_number(g, o.node));
    if (request.loads.back() < 0 || !is_dense(o)) return {};
  }
  for (const Store& s : k.stores) {
    const auto output = std::ranges::find(g.outputs, s.to.node, &Output::node);
    if (output == g.outputs.end() || !is_dense(s.to)) return {};
    request.stores.push_back(targets.at(static_cast<std::size_t>(output - g.outputs.begin())));
  }
  return request;
}

std::unique_ptr<const Each> Each::make(const Plan& plan, Place place, bool aligned, const std::vector<int>& targets) {
  auto request = each_request(plan, place, aligned, targets);
  if (!request || !plan.groups[0].executor) return {};
  auto each = std::make_unique<Each>();
  number_parameters(request->kernel, each->parameters_);
  each->arrays_ = request->arrays;
  each->step_ = static_cast<const Backend*>(plan.groups[0].executor)->make_each(*std::move(request));
  if (!each->step_) return {};
  each->step_->finish();
  return each;
}

std::vector<double> Each::values(const double* parameters) const {
  std::vector<double> values;
  for (const Parameter& p : parameters_) values.push_back(p.value(parameters));
  return values;
}

void Each::run(const ArraySets& sets, const std::vector<double>& values, Stream stream) const {
  if (sets.count() > 0) step_->run(sets, values.data(), stream);
}

}  // namespace kfusion
