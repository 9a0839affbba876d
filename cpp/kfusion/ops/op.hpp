// What the op table says of each op: the facts of a row. Nothing here changes with the rows: names.hpp has the
// enumerators, table.hpp the rows as constants of the compiler.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kfusion {

enum class Op : std::uint8_t;

enum class OpKind : std::uint8_t {
  kMap,
  kReduce,
  kSource,
  kCast,
  kView,
  kContraction,
  kGather,
  kLibrary,
  kJoin,
  kPartial
};

/// Which dtypes an op takes and gives. kNone: of what is neither map nor reduction.
enum class Signature {
#define KF_SIGNATURE(name, ...) name,
#include "kfusion/ops/signatures.def"
  kNone
};

/// What a map takes, by how it is computed.
enum class OpCost : std::uint8_t {
  kSimple,       ///< its FLOPs: a few instructions
  kDivision,     ///< a division or a square root
  kExponential,  ///< a vectorised exponential or logarithm, and what is little more
  kSine,         ///< vectorised for float32; libmvec for float64
  kFunction,     ///< float32 by way of doubles; libmvec for float64
  kRoot,         ///< several exponentials and logarithms, in doubles
  kPower,        ///< pow
};

/// What is true of a map: of floats, and of integers where they do not wrap.
enum OpFact : std::uint16_t {
  kNoFacts = 0,
  kCommutes = 1,        ///< the order of two arguments does not matter to the bit; maximum and its like give the
                        ///< first of two zeros of different signs
  kIncreases = 2,       ///< x <= y gives f(x) <= f(y); NaN only of NaN
  kIncreasesFrom0 = 4,  ///< the same where neither is negative
  kNonNegative = 8,     ///< no result is below 0 (-0 is not)
  kExact = 16,          ///< IEEE 754 or integer arithmetic defines the result's bits
  kAffine = 32,         ///< in each argument while the others stay; divide in the first
  kQuick = 64,          ///< CUDA has quick_NAME (device/quick.cuh), whose errors half types do not show
  kQuickPerRow = 128,   ///< CUDA has it for any float type, for what is computed once per row
};

struct OpInfo {
  Op op{};
  std::string_view name{};  ///< NumPy's, or torch's where NumPy has none
  OpKind kind{};
  int arity = 1;
  Signature signature = Signature::kNone;
  int flops = 0;  ///< an element of the result (kMap) or of the argument (kReduce)
  OpCost cost = OpCost::kSimple;
  int facts = kNoFacts;
  std::string_view other_names{};  ///< separated by spaces
  std::string_view doc{};
  std::string_view expression{};                             ///< kMap: the row's own tokens, C++ and CUDA alike
  std::string_view identity{}, lift{}, combine{}, finish{};  ///< kReduce, the same
  std::string_view adjoints{};                               ///< kMap, kReduce: expressions, separated by commas

  constexpr bool has(OpFact fact) const { return (facts & fact) != 0; }
  constexpr bool needs_elements() const { return identity == "none"; }  ///< kReduce: reducing nothing is an error
};

/// All rows, in the order of the enum.
std::span<const OpInfo> op_table();
const OpInfo& info(Op op);
inline std::string_view name(Op op) { return info(op).name; }
inline OpKind kind(Op op) { return info(op).kind; }
/// Aliases; or, of a library ("lax", "onnx"), what it calls the same function.
std::vector<std::string_view> other_names(const OpInfo& row, std::string_view library = {});

std::string_view name(OpKind k);                          ///< "map", "reduce", ...
std::string_view name(OpCost c);                          ///< "simple", ...
std::vector<std::string_view> names_of_facts(int facts);  ///< "commutes", ...

/// What reducing nothing gives; 0 where that is an error, and for other ops.
double value_of_nothing(Op op);

/// Finds an op by its name or another name.
std::optional<Op> op_named(std::string_view text);

}  // namespace kfusion
