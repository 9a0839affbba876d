#include "kfusion/lower/kernel_steps.hpp"

#include <algorithm>
#include <limits>

#include "kfusion/graph/powers.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"
#include "kfusion/plan/views/picks.hpp"

namespace kfusion {
namespace {

Step step(StepKind kind, const Node& node, NodeId id, DType from) {
  Step s;
  s.kind = kind;
  s.op = node.op;
  s.dtype = node.dtype;
  s.from = from;
  s.node = id;
  return s;
}

bool compares(Op op) {
  constexpr Op kAll[] = {Op::equal, Op::not_equal, Op::less, Op::less_equal, Op::greater, Op::greater_equal};
  return std::ranges::find(kAll, op) != std::end(kAll);
}

/// Halves that one kernel computes and another one compares: both must have the digits that are stored. A maximum and
/// what it is of are compared with all their digits where one kernel has both.
std::unordered_set<NodeId> compared_across(const Plan& plan) {
  const Graph& g = plan.graph;
  const auto reads = [&](NodeId n) -> const auto& { return plan.folded.work[static_cast<std::size_t>(n)].reads; };
  const auto is_extreme = [&](NodeId n) { return g[n].op == Op::max || g[n].op == Op::min; };
  const auto is_apart = [&](const Group& group, NodeId comparison) {
    const auto is_here = [&](NodeId n) { return std::ranges::find(group.nodes, n) != group.nodes.end(); };
    return std::ranges::any_of(reads(comparison), [&](const Access& a) {
      if (is_here(a.base) || g[a.base].op == Op::constant) return false;
      return g[a.base].op != Op::input || std::ranges::none_of(reads(comparison), [&](const Access& other) {
               return is_extreme(other.base) && is_here(other.base);
             });
    });
  };
  std::unordered_set<NodeId> found;
  for (std::size_t known = 1; known != found.size();) {
    known = found.size();
    for (const Group& group : plan.groups)
      for (const NodeId n : group.nodes) {
        if (!compares(g[n].op)) continue;
        const auto is_known = [&](const Access& a) { return found.contains(a.base); };
        if (!is_apart(group, n) && std::ranges::none_of(reads(n), is_known)) continue;
        for (const Access& a : reads(n))
          if (is_half(g[a.base].dtype) && g[a.base].op != Op::input) found.insert(a.base);
      }
  }
  return found;
}

}  // namespace

Steps::Steps(const Plan& plan, const Group& group, const Space& space, Kernel& k)
    : plan_(plan), g_(plan.graph), group_(group), space_(space), k_(k) {
  const auto is_half_type = [&](NodeId n) { return is_half(g_[n].dtype); };
  if (std::ranges::none_of(group.nodes, is_half_type)) return;
  const auto is_stored_here = [&](NodeId n) { return std::ranges::find(group.stores, n) != group.stores.end(); };
  const auto is_stored_wide = [&](NodeId n) {
    const bool is_element = is_elementwise(g_[n]);
    return is_element && !is_half_type(n) && is_stored_here(n);
  };
  const std::unordered_set<NodeId> compared = compared_across(plan);
  // What reductions are of, what is compared, and elements that are stored with all their digits.
  std::unordered_set<NodeId> exact;
  for (auto n = group.nodes.rbegin(); n != group.nodes.rend(); ++n)
    if (work(*n).kind == WorkKind::kReduce || exact.contains(*n) || is_stored_wide(*n) || compared.contains(*n))
      for (const Access& a : work(*n).reads) exact.insert(a.base);
  for (const NodeId n : group.nodes)
    if (is_half_type(n) && space.spans.contains(n) && compared.contains(n)) as_stored_.insert(n);
  for (const Group& any : plan.groups)
    for (const NodeId n : any.stores)
      if (is_half_type(n) && space.spans.contains(n) && (!is_stored_here(n) || exact.contains(n))) as_stored_.insert(n);
  const auto goes_on_rounded = [&](const Access& a) { return as_stored_.contains(a.base); };
  for (std::size_t known = as_stored_.size() + 1; known != as_stored_.size();) {  // what is compared with such a value
    known = as_stored_.size();
    for (const NodeId n : group.nodes)
      if (compares(g_[n].op) && std::ranges::any_of(work(n).reads, goes_on_rounded))
        for (const Access& a : work(n).reads)
          if (is_half_type(a.base) && space.spans.contains(a.base)) as_stored_.insert(a.base);
  }
}

void Steps::add_all() {
  const auto is_deferred = [&](NodeId n) { return std::ranges::find(group_.deferred, n) != group_.deferred.end(); };
  for (const NodeId n : group_.nodes)
    if (!is_deferred(n)) step_[n] = add_node(n);
}

int Steps::add_node(NodeId n) {
  switch (work(n).kind) {
    case WorkKind::kReduce:
      return add_reduction(n);
    case WorkKind::kPartial:
      return argument(space_.all(), work(n).reads[0]);
    case WorkKind::kCopy:
      return argument(space_.spans.at(n), work(n).reads[0]);
    case WorkKind::kContraction:
      return operand(StepKind::kLoad, loads_,
                     seen_from(space_, space_.spans.at(n), identity_access(n, g_[n].shape), g_[n].dtype));
    default:
      return add_map(n);
  }
}

/// Adds a map that is computed once a row, though the graph has it for every element.
int Steps::add_row_map(NodeId n) {
  const Node& node = g_[n];
  const DType from = g_[node.arguments.back()].dtype;
  Step s = step(kind(node.op) == OpKind::kMap ? StepKind::kMap : StepKind::kCast, node, n, from);
  for (const Access& a : work(n).reads) s.arguments.push_back(argument(space_.all(), a));
  return push(std::move(s));
}

/// A reduction of one element is that element in the type of the result, a part of a join what it stores.
int Steps::add_map(NodeId n) {
  const Node& node = g_[n];
  if (is_part(node)) return argument(space_.spans.at(n), work(n).reads[0]);
  if (kind(node.op) == OpKind::kGather) {
    const Access& from = work(n).reads[0];
    if (space_.spans.contains(from.base))
      return add_pick(n, argument(space_.all(), identity_access(from.base, g_[from.base].shape)));
    return is_around_product() && is_vector_along(from, extent_of_row()) ? add_pick(n, element_of_row(from))
                                                                         : add_take(n);
  }
  if (const int power = power_by_products(g_, n)) return add_products(n, power);
  const DType from = g_[node.arguments.back()].dtype;  // a condition comes first and has a type of its own
  Step s = step(kind(node.op) == OpKind::kMap ? StepKind::kMap : StepKind::kCast, node, n, from);
  for (const Access& a : work(n).reads) s.arguments.push_back(argument(space_.spans.at(n), a));
  if (kind(node.op) == OpKind::kReduce && from == node.dtype) return s.arguments[0];
  return push(std::move(s));
}

int Steps::add_take(NodeId n) {
  const Node& node = g_[n];
  const auto& take = g_.attributes<TakeAttributes>(n);
  const Access& elements = work(n).reads[0];
  Step s = step(StepKind::kTake, node, n, g_[node.arguments[1]].dtype);
  s.arguments = {argument(space_.spans.at(n), work(n).reads[1])};
  s.index = static_cast<int>(tables_.size());
  tables_.push_back(seen_from(space_, space_.spans.at(n), elements, node.dtype));
  Table& table = k_.tables.emplace_back();
  table.stride = elements.step;
  table.positions = {elements.positions, take.nonnegative};
  table.axis = take.axis;
  table.function = g_.stages[at(node.stage)].name;
  return push(std::move(s));
}

/// Adds a pick of one element of each row: the sum of where(its place in the row == index, element, 0), NaN where none
/// has the index.
int Steps::add_pick(NodeId n, int element) {
  const Node& node = g_[n];
  const NodeId value = work(n).reads[0].base;
  const Positions positions = positions_of(g_, plan_.folded, n);
  const DType integers = g_[node.arguments[1]].dtype;
  int index = argument(space_.spans.at(n), work(n).reads[1]);
  if (integers != DType::kInt64) index = cast(DType::kInt64, integers, index);
  const bool is_sure = always_has_position(g_, plan_.folded, n);
  const int known = is_sure ? -1 : known_positions(index, positions);
  if (!positions.nonnegative) {
    const int behind = map(Op::add, DType::kInt64, DType::kInt64, {index, integer(positions.extent, DType::kInt64)});
    const int negative = map(Op::less, DType::kBool, DType::kInt64, {index, integer(0, DType::kInt64)});
    index = map(Op::where, DType::kInt64, DType::kInt64, {negative, behind, index});
  }
  const int is_it = map(Op::equal, DType::kBool, DType::kInt64, {place_in_row(value), index});
  Step sum = step(StepKind::kReduce, node, n, node.dtype);
  sum.op = Op::sum;
  sum.arguments = {map(Op::where, node.dtype, node.dtype, {is_it, element, real(0, node.dtype)})};
  const int picked = push(std::move(sum));
  if (is_sure) return picked;
  return map(Op::where, node.dtype, node.dtype,
             {known, picked, real(std::numeric_limits<double>::quiet_NaN(), node.dtype)});
}

bool Steps::is_around_product() const {
  return space_.reduced != 0 && std::ranges::any_of(group_.nodes, [&](NodeId n) { return g_[n].op == Op::matmul; });
}

std::int64_t Steps::extent_of_row() const { return product(extents_of(space_.extents, space_.reduced)); }

/// Along the reduced axes, which are neighbours, elements `stride` apart.
Extents Steps::strides_in_row(std::int64_t stride) const {
  Extents strides(space_.extents.size(), 0);
  for (std::size_t axis = space_.extents.size(); axis-- > 0;) {
    if ((space_.reduced & axis_bit(axis)) == 0) continue;
    strides[axis] = stride;
    stride *= space_.extents[axis];
  }
  return strides;
}

int Steps::place_in_row(NodeId value) {
  return operand(StepKind::kIota, iotas_, {value, DType::kInt64, strides_in_row(1), 0});
}

/// Loads a vector of which each row takes one element: all of them go by with the row.
int Steps::element_of_row(const Access& from) {
  return operand(StepKind::kLoad, loads_, {from.base, g_[from.base].dtype, strides_in_row(from.step), from.offset});
}

int Steps::known_positions(int index, const Positions& p) {
  const auto is = [&](Op op, std::int64_t bound) {
    return map(op, DType::kBool, DType::kInt64, {index, integer(bound, DType::kInt64)});
  };
  const int low = is(Op::greater_equal, p.nonnegative ? 0 : -p.extent), high = is(Op::less, p.extent);
  return map(Op::logical_and, DType::kBool, DType::kBool, {low, high});
}

int Steps::add_products(NodeId n, int power) {
  const Node& node = g_[n];
  const auto push_map = [&](Op op, std::vector<int> arguments) {
    Step s = step(StepKind::kMap, node, n, node.dtype);
    s.op = op, s.arguments = std::move(arguments);
    return push(std::move(s));
  };
  const int x = argument(space_.spans.at(n), work(n).reads[0]);
  if (power == -2) return push_map(Op::square, {push_map(Op::reciprocal, {x})});  // x^2 overflows before 1 / x^2 is 0
  const int square = push_map(Op::square, {x});
  return power == 3 ? push_map(Op::multiply, {square, x}) : push_map(Op::square, {square});
}

/// The reduction comes first, of what the first of the maps is of.
int Steps::add_before_deferred(NodeId reduction) {
  const auto& maps = group_.deferred;
  const auto& reads = work(maps.front()).reads;
  const auto is_element = [&](const Access& a) {
    const auto span = space_.spans.find(a.base);
    return span != space_.spans.end() && span->second == space_.all();
  };
  const NodeId from = std::ranges::find_if(reads, is_element)->base;
  Step s = step(StepKind::kReduce, g_[reduction], reduction, g_[from].dtype);
  const int elements = step_of(from);
  s.arguments = {elements};
  step_[from] = push(std::move(s));
  for (const NodeId n : maps) step_[n] = add_row_map(n);
  step_[from] = elements;
  return step_of(maps.back());
}

int Steps::add_reduction(NodeId n) {
  if (!group_.deferred.empty() && work(n).reads[0].base == group_.deferred.back()) return add_before_deferred(n);
  Step s = step(StepKind::kReduce, g_[n], n, g_[g_[n].arguments[0]].dtype);
  s.arguments = {argument(space_.all(), work(n).reads[0])};
  const int index = push(std::move(s));
  add_pair(n, index);
  return index;
}

void Steps::add_pair(NodeId reduction, int step) {
  const NodeId first = merged_with(g_, plan_.folded, group_.nodes, reduction);
  if (first < 0) return;
  const auto kind = g_[first].op == Op::mean      ? Pair::Kind::kCentred
                    : g_[reduction].op == Op::min ? Pair::Kind::kFound
                                                  : Pair::Kind::kShifted;
  const int pair = static_cast<int>(k_.pairs.size());
  for (const int reduction_step : {step_of(first), step}) k_.steps[at(reduction_step)].pair = pair;
  k_.pairs.push_back({kind, step_of(first), step});
}

int Steps::argument(Axes span, const Access& a) {
  if (space_.spans.contains(a.base)) return as_read(a.base);
  const Node& source = g_[a.base];
  if (source.op == Op::constant) return constant(a.base);
  const Strided seen = seen_from(space_, span, a, source.dtype);
  return source.op == Op::iota ? operand(StepKind::kIota, iotas_, seen) : operand(StepKind::kLoad, loads_, seen);
}

/// What the kernel goes on with: rounded where what it stores is reduced or goes into wider values that it stores, and
/// where another kernel stores the value.
int Steps::as_read(NodeId n) {
  const int i = step_of(n);
  if (!as_stored_.contains(n)) return unstored(i);
  if (k_.step(i).kind == StepKind::kCast) return i;
  const auto [known, is_new] = rounded_.try_emplace(n, i);
  if (is_new) known->second = cast(g_[n].dtype, DType::kFloat32, i);
  return known->second;
}

int Steps::cast(DType to, DType from, int i) {
  Step s;
  s.kind = StepKind::kCast, s.op = Op::cast, s.dtype = to, s.from = from;
  s.arguments = {i};
  return push(std::move(s));
}

/// What the kernel goes on with where `i` only says how a result is stored.
int Steps::unstored(int i) const {
  const Step& s = k_.step(i);
  const bool is_made_here = s.node < 0;  // a rounded value that the kernel goes on with
  if (s.kind != StepKind::kCast || !is_half(s.dtype) || s.from != DType::kFloat32 || is_made_here) return i;
  const auto* cast = std::get_if<CastAttributes>(&g_[s.node].attributes);  // else a reduction of one element
  return cast && cast->rounds ? i : s.arguments[0];
}

int Steps::operand(StepKind kind, Operands& among, const Strided& operand) {
  const auto found = std::find(among.all.begin(), among.all.end(), operand);
  if (found != among.all.end()) return among.steps[static_cast<std::size_t>(found - among.all.begin())];
  Step s = step(kind, g_[operand.node], operand.node, operand.dtype);
  s.dtype = operand.dtype;
  s.index = static_cast<int>(among.all.size());
  among.all.push_back(operand);
  among.steps.push_back(push(std::move(s)));
  return among.steps.back();
}

int Steps::constant(NodeId n) {
  const auto known = step_.find(n);
  if (known != step_.end()) return known->second;
  const Node& node = g_[n];
  const auto& given = g_.attributes<ConstantAttributes>(n);
  Step s = step(StepKind::kConstant, node, n, node.dtype);
  s.index = static_cast<int>(k_.constants.size());
  k_.constants.push_back({node.dtype, given.value, given.integer, given.parameter, given.wide});
  return step_[n] = push(std::move(s));
}

int Steps::integer(std::int64_t value, DType dtype) {
  Step s;
  s.kind = StepKind::kConstant, s.op = Op::constant, s.dtype = dtype, s.from = dtype;
  s.index = static_cast<int>(k_.constants.size());
  k_.constants.push_back({dtype, static_cast<double>(value), value, -1});
  return push(std::move(s));
}

int Steps::real(double value, DType dtype) {
  const int s = integer(0, dtype);
  k_.constants.back().value = value;
  return s;
}

int Steps::map(Op op, DType dtype, DType from, std::vector<int> arguments) {
  Step s;
  s.kind = StepKind::kMap, s.op = op, s.dtype = dtype, s.from = from;
  s.arguments = std::move(arguments);
  return push(std::move(s));
}

int Steps::push(Step s) {
  k_.steps.push_back(std::move(s));
  return static_cast<int>(k_.steps.size()) - 1;
}

}  // namespace kfusion
