// Expressions that stand for nodes which may be added to a graph: what the adjoints in ops.def are written in.
#pragma once
#include <memory>
#include <vector>

#include "kfusion/graph/graph.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

/// A number, a node, or an op of the table on expressions. Nothing is added to a graph before `Emitter` does.
class Expr {
 public:
  struct Term {
    double number = 0;
    NodeId node = -1;  ///< -1 where it is no node
    Op op = Op::input;
    std::vector<Expr> arguments;  ///< none: a number or a node
  };

  Expr(double number) : term_(std::make_shared<Term>(Term{.number = number, .arguments = {}})) {}
  Expr(Op op, std::vector<Expr> arguments)
      : term_(std::make_shared<Term>(Term{.op = op, .arguments = std::move(arguments)})) {}
  static Expr of(NodeId node) {
    Expr e(0);
    e.term_ = std::make_shared<Term>(Term{.node = node, .arguments = {}});
    return e;
  }
  const Term& term() const { return *term_; }

 private:
  std::shared_ptr<const Term> term_;
};

// A function for each map of the table, by its name: exp(x), where(x, y, z).
#define KF_MAP(name, arity, ...)             \
  template <class... Arguments>              \
    requires(sizeof...(Arguments) == arity)  \
  Expr name(const Arguments&... arguments) { \
    return {Op::name, {Expr(arguments)...}}; \
  }
#include "kfusion/ops/ops.def"

/// Along the axes of the reduction whose adjoint it is part of, which stay with extent 1.
inline Expr sum(const Expr& x) { return {Op::sum, {x}}; }
inline Expr prod(const Expr& x) { return {Op::prod, {x}}; }

inline Expr operator+(const Expr& x, const Expr& y) { return add(x, y); }
inline Expr operator-(const Expr& x, const Expr& y) { return subtract(x, y); }
inline Expr operator*(const Expr& x, const Expr& y) { return multiply(x, y); }
inline Expr operator/(const Expr& x, const Expr& y) { return divide(x, y); }
inline Expr operator-(const Expr& x) { return negative(x); }
inline Expr operator==(const Expr& x, const Expr& y) { return equal(x, y); }
inline Expr operator<(const Expr& x, const Expr& y) { return less(x, y); }
inline Expr operator<=(const Expr& x, const Expr& y) { return less_equal(x, y); }
inline Expr operator>(const Expr& x, const Expr& y) { return greater(x, y); }
inline Expr operator>=(const Expr& x, const Expr& y) { return greater_equal(x, y); }

/// The adjoints of a row of the table, as many as it has arguments; of rows that give no floats none.
std::vector<Expr> adjoints(Op op, const std::vector<Expr>& arguments, const Expr& r, const Expr& g, double n);

}  // namespace kfusion::grad
