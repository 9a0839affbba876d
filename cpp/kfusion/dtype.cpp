#include "kfusion/dtype.hpp"

#include <algorithm>
#include <cmath>

#include "kfusion/enumerators.hpp"

namespace kfusion {
static_assert(kDTypes == kEnumerators<DType>);
namespace {

/// To `digits` binary digits where the exponent is at least `min_exponent`, fewer below; once, not through float32.
double round_digits(double value, int digits, int min_exponent, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int last = std::max(std::ilogb(value), min_exponent) - (digits - 1);
  const double result = std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
  return std::abs(result) > largest ? std::copysign(HUGE_VAL, value) : result;
}

}  // namespace

double rounded(double value, DType t) {
  switch (t) {
    case DType::kFloat16:
      return round_digits(value, 11, -14, 65504);
    case DType::kBFloat16:
      return round_digits(value, 8, -126, 0x1.FEp127);
    case DType::kFloat32:
      return static_cast<double>(static_cast<float>(value));
    default:
      return value;
  }
}

}  // namespace kfusion
