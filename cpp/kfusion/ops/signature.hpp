// Which dtypes an op takes and gives: a row of facts for each Signature.
#pragma once
#include <cstdint>
#include <string_view>

#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion {

enum TypeClass : std::uint8_t { kBools = 1, kInt32s = 2, kInt64s = 4, kFloats = 8, kIntegers = 6, kAll = 15 };

/// What arguments that have one dtype are converted to, and what comes out. kCount: int64 of integers and bools.
enum class Becomes : std::uint8_t { kItself, kFloat, kBool, kInt64 };
enum class Gives : std::uint8_t { kItself, kBool, kCount };

struct SignatureInfo {
  std::string_view name{};  ///< "" of what is neither map nor reduction
  int takes = kAll;         ///< TypeClass, joined by |
  Becomes becomes = Becomes::kItself;
  Gives gives = Gives::kItself;
  bool chooses = false;  ///< a bool comes first, which takes no part in this
  std::string_view takes_words{}, gives_words{};

  constexpr bool accepts(DType t) const {
    return (takes & (is_float(t) ? kFloats : t == DType::kBool ? kBools : t == DType::kInt32 ? kInt32s : kInt64s)) != 0;
  }
  constexpr DType result(DType t) const {
    return gives_bool() ? DType::kBool : gives == Gives::kCount && !is_float(t) ? DType::kInt64 : t;
  }
  constexpr bool gives_bool() const { return gives == Gives::kBool; }
  /// Whether a reduction sums or multiplies, so that its accumulators may need more bits than elements.
  constexpr bool accumulates() const { return gives == Gives::kCount || becomes == Becomes::kFloat; }
};

/// In the order of the enum.
inline constexpr SignatureInfo kSignatures[] = {
#define KF_SIGNATURE(name, takes, becomes, gives, ...) {#name, takes, Becomes::becomes, Gives::gives, __VA_ARGS__},
#include "kfusion/ops/signatures.def"
    {},
};

constexpr const SignatureInfo& info(Signature s) { return kSignatures[static_cast<int>(s)]; }
inline const SignatureInfo& signature_of(Op op) { return info(info(op).signature); }

}  // namespace kfusion
