// The columns of ops.def, read as expressions.
#include "kfusion/grad/expression.hpp"

#include <numbers>

#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

std::vector<Expr> adjoints(Op op, const std::vector<Expr>& arguments, const Expr& r, const Expr& g, double n) {
  constexpr double kLn2 = std::numbers::ln2, kLn10 = std::numbers::ln10;
  constexpr double kTwoOverSqrtPi = 2 * std::numbers::inv_sqrtpi;
  const Expr zero(0), x = arguments[0], y = arguments.size() > 1 ? arguments[1] : zero,
                      z = arguments.size() > 2 ? arguments[2] : zero;
  switch (op) {
#define KF_MAP(name, arity, signature, flops, cost, facts, other_names, doc, expression, ...) \
  case Op::name:                                                                              \
    return {__VA_ARGS__};
#define KF_REDUCE(name, signature, flops, other_names, doc, identity, lift, combine, finish, ...) \
  case Op::name:                                                                                  \
    return {__VA_ARGS__};
#include "kfusion/ops/ops.def"
    default:
      return {};
  }
}

}  // namespace kfusion::grad
