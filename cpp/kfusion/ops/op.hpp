// What the op table says of each op: an enum and a row of facts, both read from ops.def.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kfusion {

enum class Op : std::uint8_t {
#define KF_MAP(name, ...) name,
#define KF_REDUCE(name, ...) name,
#define KF_NODE(name, ...) name,
#include "kfusion/ops/ops.def"
};

enum class OpKind : std::uint8_t { kMap, kReduce, kSource, kCast, kView, kContraction, kGather };

/// Which dtypes an op takes and gives; ops.def explains each.
enum class Signature { F_F, FF_F, N_N, NN_N, NNN_N, S_S, SS_S, A_B, AA_B, BB_B, BNN_N, II_I, C_C, kNone };

struct OpInfo {
  Op op;
  std::string_view name;  ///< NumPy's, or torch's where NumPy has none
  OpKind kind;
  int arity;
  Signature signature;
  int flops;                     ///< an element of the result (kMap) or of the argument (kReduce)
  std::string_view other_names;  ///< aliases, separated by spaces
  std::string_view doc;
  std::string_view expression;  ///< kMap: the row's own tokens, C++ and CUDA alike; kReduce: lift, combine, finish
  bool needs_elements;          ///< kReduce: reducing nothing is an error
  bool commutative;             ///< kMap of two arguments: the order does not matter
  std::string_view identity{};  ///< kReduce: "none" where it needs elements
};

/// All rows, in the order of the enum.
std::span<const OpInfo> op_table();
const OpInfo& info(Op op);
inline std::string_view name(Op op) { return info(op).name; }
inline OpKind kind(Op op) { return info(op).kind; }
std::vector<std::string_view> other_names(const OpInfo& row);

std::string_view name(OpKind k);     ///< "map", "reduce", ...
std::string_view name(Signature s);  ///< "F_F", ...; "" where there is none

/// By name or other name.
std::optional<Op> op_named(std::string_view text);

}  // namespace kfusion
