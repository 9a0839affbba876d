// Patterns of what a value is computed from: for rewrites, executors and printers, over whatever holds the operations.
//
//   NodeId e, x;
//   m::matches(g, n, m::divide(m::bind(e, m::exp(m::bind(x))), m::sum(m::is(e))))    // n is a softmax of x
//
// A pattern is a function of a reader and a value. A reader of values V (nodes of a graph, reads of a folded graph,
// steps of a kernel) has
//   Op op(V)                            what computes the value; Op::input where the reader does not look further
//   V argument(V, std::size_t i)
//   std::optional<double> number(V)     of a constant that is the same in every call
// Arguments are matched in the order of the pattern. The two of a commutative operation are tried in both orders, so
// that what a failed try has bound may be bound again: bound variables mean something only where the whole pattern
// matches.
#pragma once
#include <optional>
#include <utility>

#include "kfusion/graph/graph.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::m {

inline auto value() {
  return [](const auto&, const auto&) { return true; };
}

/// What `pattern` matches; `to` is that value.
template <class V, class P>
auto bind(V& to, P pattern) {
  return [&to, pattern](const auto& reader, const V& v) {
    if (!pattern(reader, v)) return false;
    to = v;
    return true;
  };
}
template <class V>
auto bind(V& to) {
  return bind(to, value());
}

/// The value that a variable has when its turn comes: one that stands, or that an argument before it has bound.
template <class V>
auto is(const V& same) {
  return [&same](const auto&, const V& v) { return v == same; };
}

/// A value for which `test` holds.
template <class Test>
auto such(Test test) {
  return [test](const auto&, const auto& v) { return test(v); };
}

inline auto number(double wanted) {
  return [wanted](const auto& reader, const auto& v) { return reader.number(v) == wanted; };
}
/// Matches any constant, whose value goes to `to`.
inline auto number(std::optional<double>& to) {
  return [&to](const auto& reader, const auto& v) { return (to = reader.number(v)).has_value(); };
}

template <class... P>
auto either(P... patterns) {
  return [=](const auto& reader, const auto& v) { return (patterns(reader, v) || ...); };
}
template <class... P>
auto both(P... patterns) {
  return [=](const auto& reader, const auto& v) { return (patterns(reader, v) && ...); };
}

/// An operation whose first arguments match `arguments`.
template <class... P>
auto operation(Op op, P... arguments) {
  return [=](const auto& reader, const auto& v) {
    if (reader.op(v) != op) return false;
    const auto match = [&](std::size_t first, std::size_t step) {
      std::size_t i = first;
      [[maybe_unused]] const auto next = [&] { return reader.argument(v, std::exchange(i, i + step)); };
      return (arguments(reader, next()) && ...);
    };
    if (match(0, 1)) return true;
    return sizeof...(arguments) == 2 && info(op).has(kCommutes) && match(1, std::size_t(-1));
  };
}

#define KF_MAP(name, ...)                     \
  template <class... P>                       \
  auto name(P... arguments) {                 \
    return operation(Op::name, arguments...); \
  }
#define KF_REDUCE KF_MAP
#define KF_NODE KF_MAP
#include "kfusion/ops/ops.def"

/// What `pattern` matches, behind as many casts as there are.
template <class P>
auto casts(P pattern) {
  return [pattern](const auto& reader, auto v) {
    while (reader.op(v) == Op::cast) v = reader.argument(v, 0);
    return pattern(reader, v);
  };
}

/// Nodes of a graph.
struct GraphReader {
  const Graph& g;

  Op op(NodeId n) const { return g[n].op; }
  NodeId argument(NodeId n, std::size_t i) const { return g[n].arguments[i]; }
  std::optional<double> number(NodeId n) const {
    const auto* const c = std::get_if<ConstantAttributes>(&g[n].attributes);
    if (!c || c->parameter >= 0) return std::nullopt;
    return is_integer(g[n].dtype) ? static_cast<double>(c->integer) : c->value;
  }
};

template <class P>
bool matches(const Graph& g, NodeId n, const P& pattern) {
  return pattern(GraphReader{g}, n);
}

}  // namespace kfusion::m
