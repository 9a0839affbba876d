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
  Signature signature{};
  std::string_view name{};  ///< "" of what is neither map nor reduction
  int takes = kAll;         ///< TypeClass, joined by |
  Becomes becomes = Becomes::kItself;
  Gives gives = Gives::kItself;
  bool chooses = false;  ///< a bool comes first, which takes no part in this

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
    {Signature::F_F, "F_F", kFloats, Becomes::kFloat},
    {Signature::FF_F, "FF_F", kFloats, Becomes::kFloat},
    {Signature::N_N, "N_N"},
    {Signature::NN_N, "NN_N"},
    {Signature::NNN_N, "NNN_N"},
    {Signature::S_S, "S_S", kIntegers | kFloats},
    {Signature::SS_S, "SS_S", kIntegers | kFloats},
    {Signature::A_B, "A_B", kAll, Becomes::kItself, Gives::kBool},
    {Signature::AA_B, "AA_B", kAll, Becomes::kItself, Gives::kBool},
    {Signature::BB_B, "BB_B", kBools, Becomes::kBool, Gives::kBool},
    {Signature::BNN_N, "BNN_N", kAll, Becomes::kItself, Gives::kItself, true},
    {Signature::II_I, "II_I", kBools | kIntegers},
    {Signature::ZZ_Z, "ZZ_Z", kIntegers},
    {Signature::LLL_L, "LLL_L", kInt64s, Becomes::kInt64},
    {Signature::C_C, "C_C", kAll, Becomes::kItself, Gives::kCount},
    {Signature::kNone, ""},
};

static_assert([] {
  for (const SignatureInfo& s : kSignatures)
    if (&s != &kSignatures[static_cast<int>(s.signature)]) return false;
  return true;
}());

constexpr const SignatureInfo& info(Signature s) { return kSignatures[static_cast<int>(s)]; }
constexpr const SignatureInfo& signature_of(Op op) { return info(info(op).signature); }

}  // namespace kfusion
