// Adds the nodes of adjoints to a graph, without those that change nothing.
#pragma once
#include <optional>
#include <unordered_map>

#include "kfusion/grad/expression.hpp"
#include "kfusion/graph/builder.hpp"

namespace kfusion::grad {

/// The number that all elements of a node are, where it is known when traced.
std::optional<double> number_of(const Graph& g, NodeId node);

/// x, whose shape broadcasts, in a shape.
NodeId broadcast_to(GraphBuilder& b, NodeId x, Extents shape);

/// The sum along some axes, which stay with extent 1. What is repeated along an axis is multiplied.
NodeId sum_over(GraphBuilder& b, NodeId x, const AxisList& axes);

/// The sum along the axes along which x's shape was broadcast from `shape`.
NodeId sum_to(GraphBuilder& b, NodeId x, Extents shape);

/// x from `start` on, `extent` elements along an axis, with zeros where x has none.
NodeId window(GraphBuilder& b, NodeId x, int axis, std::int64_t start, std::int64_t extent);

NodeId zeros(GraphBuilder& b, Extents shape, DType dtype);

/// x * factor.
NodeId scaled(GraphBuilder& b, NodeId x, double factor);

/// Adds the nodes of one node's adjoints; common parts are added once.
class Emitter {
 public:
  /// Numbers become of `dtype`; reductions go along `axes`, of `whole` arrays where they are all.
  Emitter(GraphBuilder& builder, DType dtype, AxisList axes = {}, bool whole = false)
      : b_(builder), dtype_(dtype), axes_(std::move(axes)), whole_(whole) {}

  /// Nothing where it is 0.
  std::optional<NodeId> emit(const Expr& e);

 private:
  struct Value {
    NodeId node = -1;
    double number = 0;  // where node is -1
    bool is(double n) const { return node < 0 && number == n; }
  };
  Value value(const Expr& e);
  Value made(const Expr::Term& t);
  Value applied(Op op, const std::vector<Value>& arguments);
  std::optional<Value> folded(Op op, const std::vector<Value>& arguments) const;
  NodeId node(const Value& v);

  GraphBuilder& b_;
  DType dtype_;
  AxisList axes_;
  bool whole_;
  std::unordered_map<const Expr::Term*, Value> known_;
};

}  // namespace kfusion::grad
