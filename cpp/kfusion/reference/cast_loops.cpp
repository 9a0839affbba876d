#include <bit>

#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/halves.hpp"
#include "kfusion/reference/loops.hpp"

namespace kfusion::reference {
namespace {

/// The float nearest to `x` towards 0, its last bit set where it is not exact: rounding that to a half type rounds `x`
/// once.
inline float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (nearest == x || x != x) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool away = (nearest > x) == (x > 0);
  return std::bit_cast<float>((away ? bits - 1 : bits) | 1u);
}

/// Elements of dtype `t` in an array: what they are loaded as, and how any value is stored.
template <DType t>
struct Element {
  using Loaded = typename ComputeOf<t>::type;
  static Loaded load(const std::byte* p) { return reference::load<Loaded>(p); }
  template <class From>
  static void store(std::byte* p, From x) {
    reference::store(p, convert<Loaded>(x));
  }
};

template <float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float)>
struct HalfElement {
  using Loaded = float;
  static float load(const std::byte* p) { return widen(reference::load<std::uint16_t>(p)); }
  template <class From>
  static void store(std::byte* p, From x) {
    const float once = std::is_same_v<From, float> ? static_cast<float>(x) : rounded_to_odd(static_cast<double>(x));
    reference::store<std::uint16_t>(p, narrow(once));
  }
};
template <>
struct Element<DType::kFloat16> : HalfElement<float_of_half, half_of_float> {};
template <>
struct Element<DType::kBFloat16> : HalfElement<float_of_bfloat, bfloat_of_float> {};

template <DType from, DType to>
void cast_run(std::int64_t n, const Pointers& p, const Strides& s) {
  for (std::int64_t i = 0; i < n; ++i) Element<to>::store(p[0] + i * s[0], Element<from>::load(p[1] + i * s[1]));
}

template <DType from, std::size_t... to>
constexpr LoopPerDType loops_from(std::index_sequence<to...>) {
  return {cast_run<from, static_cast<DType>(to)>...};
}

template <std::size_t... from>
constexpr std::array<LoopPerDType, kDTypes> all_loops(std::index_sequence<from...>) {
  return {loops_from<static_cast<DType>(from)>(std::make_index_sequence<kDTypes>())...};
}

constexpr auto kCastLoops = all_loops(std::make_index_sequence<kDTypes>());

}  // namespace

Loop cast_loop(DType from, DType to) {
  return kCastLoops[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

}  // namespace kfusion::reference
