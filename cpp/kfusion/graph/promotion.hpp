// Which dtypes ops take and give: NumPy 2's rules (NEP 50), and torch's for torch's values and wherever bfloat16 takes
// part, which NumPy does not know.
#pragma once
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// What promotion asks of an argument.
struct TypedOperand {
  DType dtype = DType::kFloat32;
  bool weak = false;         ///< a Python scalar
  bool zero_dim = false;     ///< without axes: torch lets it yield within its category
  std::int64_t integer = 0;  ///< the value of a weak integer
};
TypedOperand operand(const Node& n);

struct MapTypes {
  std::vector<DType> arguments;  ///< what each has to be cast to
  DType result;
};

/// Throws TypeError where the op is not for these dtypes (or NumPy gives one that is not ours), std::overflow_error
/// where a Python integer does not fit.
MapTypes map_types(Op op, std::span<const TypedOperand> operands, Library library);

/// What a reduction's argument has to be cast to. Throws TypeError.
DType reduce_argument(Op op, DType x, Library library);

/// The dtype that both are cast to. Throws TypeError.
DType contraction_type(Op op, const TypedOperand& a, const TypedOperand& b, Library library);

/// The dtype that all parts of a join are cast to. Throws TypeError.
DType join_type(std::span<const TypedOperand> parts, Library library);

/// What a node has from its arguments: torch's rules where one is torch's, the first CUDA device where one is on CUDA.
Library inferred_library(const Graph& g, const Node& n);
Place inferred_place(const Graph& g, const Node& n);

/// The result's dtype for arguments that are cast already; nothing where the op does not take them.
std::optional<DType> result_type(const OpInfo& op, std::span<const DType> arguments);

}  // namespace kfusion
