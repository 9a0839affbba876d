#include "kfusion/grad/loose.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"

namespace kfusion::grad {
namespace {

/// Whether each result is an argument's element, perhaps with another sign, or a small integer.
bool selects(Op op) {
  switch (op) {
    case Op::absolute:
    case Op::clip:
    case Op::copysign:
    case Op::fmax:
    case Op::fmin:
    case Op::max:
    case Op::maximum:
    case Op::min:
    case Op::minimum:
    case Op::negative:
    case Op::positive:
    case Op::relu:
    case Op::sign:
    case Op::where:
      return true;
    default:
      return false;
  }
}

bool rounds_where_stored(const Node& n) {
  if (!is_half(n.dtype) || selects(n.op)) return false;
  switch (kind(n.op)) {
    case OpKind::kMap:
    case OpKind::kReduce:
    case OpKind::kPartial:
    case OpKind::kContraction:
      return true;
    case OpKind::kCast:
      return !std::get<CastAttributes>(n.attributes).rounds;
    default:
      return false;
  }
}

}  // namespace

Loose loose_values(const Graph& g) {
  Loose found{std::vector<bool>(g.nodes.size()), std::vector<bool>(g.nodes.size())};
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    const bool is_call = kind(g[id].op) == OpKind::kLibrary;  // never computed again
    const auto is_loose = [&](NodeId a) { return found.values[at(a)]; };
    found.rounds[at(id)] = rounds_where_stored(g[id]);
    found.values[at(id)] = found.rounds[at(id)] || (!is_call && std::ranges::any_of(g[id].arguments, is_loose));
  }
  return found;
}

}  // namespace kfusion::grad
