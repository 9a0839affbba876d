// Vec<T>: a value of compute type T (ops.def) of the kernel that is being written. Its operators append instructions,
// so that codegen/math/*.hpp and ops.def, compiled with it, print what they compute.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

#include "cpu/codegen/instructions/ir.hpp"

namespace kfusion::cpu::ir {
namespace {

template <class T>
constexpr bool kIsBool = sizeof(T) == 1;
template <class T>
constexpr bool kIsFloat = T(1) / T(2) != T(0);

template <int bytes>
struct IntegerOf {
  using Type = std::int32_t;
};
template <>
struct IntegerOf<8> {
  using Type = std::int64_t;
};

template <class T>
constexpr const char* scalar_type() {
  if (kIsFloat<T>) return sizeof(T) == 8 ? "double" : "float";
  return kIsBool<T> ? "i1" : sizeof(T) == 8 ? "i64" : "i32";
}
template <class T>
std::string type() {
  return vector_of(scalar_type<T>());
}

/// A number as LLVM reads it: floats by the bits of the double that they equal.
template <class T, class S>
std::string literal(S number) {
  const T value = static_cast<T>(number);
  if constexpr (!kIsFloat<T>) return std::to_string(static_cast<std::int64_t>(value));
  const double exact = static_cast<double>(value);
  std::uint64_t bits;
  std::memcpy(&bits, &exact, sizeof bits);
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%016llX", static_cast<unsigned long long>(bits));
  return digits;
}

inline std::string two_of(const char* op, const std::string& type, const std::string& a, const std::string& b) {
  return emit(std::string(op) + " " + type + " " + a + ", " + b);
}

/// What a comparison of elements of so many bytes gives.
template <int bytes>
struct Mask {
  std::string v;

  static std::string type() { return vector_of("i1"); }
  friend Mask operator&&(const Mask& a, const Mask& b) { return {two_of("and", type(), a.v, b.v)}; }
  friend Mask operator||(const Mask& a, const Mask& b) { return {two_of("or", type(), a.v, b.v)}; }
  friend Mask operator!=(const Mask& a, const Mask& b) { return {two_of("xor", type(), a.v, b.v)}; }
  friend Mask operator!(const Mask& a) { return {two_of("xor", type(), a.v, splat("i1", "true"))}; }
};

template <class T>
struct Vec {
  using Value = T;
  using Lane = T;
  using MaskType = Mask<sizeof(T) == 8 ? 8 : 4>;
  using Integers = Vec<typename IntegerOf<sizeof(T)>::Type>;

  std::string v;

  Vec() = default;
  explicit Vec(std::string name) : v(std::move(name)) {}
  /// A number in every lane.
  template <class S>
    requires std::is_arithmetic_v<S>
  explicit Vec(S number) : v(splat(scalar_type<T>(), literal<T>(number))) {}
  template <class S>
  explicit Vec(const Vec<S>& x);
  template <int bytes>
  explicit Vec(const Mask<bytes>& m) : v(Vec(Vec<std::uint8_t>(m.v)).v) {}

  /// Takes the bits of another type's lanes.
  template <class S>
  static Vec bits(const Vec<S>& x) {
    if constexpr (std::is_same_v<S, T>) return x;
    return Vec(emit("bitcast " + type<S>() + " " + x.v + " to " + type<T>()));
  }

#define KF_OPERATOR(op, of_floats, of_integers, of_bools)                                                   \
  friend Vec operator op(const Vec& a, const Vec& b) {                                                      \
    return Vec(two_of(kIsFloat<T> ? of_floats : kIsBool<T> ? of_bools : of_integers, type<T>(), a.v, b.v)); \
  }
#define KF_BITWISE(op, name)                                                                                           \
  friend Vec operator op(const Vec& a, const Vec& b) {                                                                 \
    if constexpr (kIsFloat<T>)                                                                                         \
      return bits(Integers(two_of(name, type<typename Integers::Value>(), Integers::bits(a).v, Integers::bits(b).v))); \
    else                                                                                                               \
      return Vec(two_of(name, type<T>(), a.v, b.v));                                                                   \
  }
#define KF_COMPARISON(op, of_floats, of_integers, of_bools) \
  friend MaskType operator op(const Vec& a, const Vec& b) { \
    return {two_of(kIsFloat<T>  ? "fcmp " of_floats         \
                   : kIsBool<T> ? "icmp " of_bools          \
                                : "icmp " of_integers,      \
                   type<T>(), a.v, b.v)};                   \
  }
  KF_OPERATOR(+, "fadd", "add", "or")
  KF_OPERATOR(-, "fsub", "sub", "xor")
  KF_OPERATOR(*, "fmul", "mul", "and")
  KF_OPERATOR(/, "fdiv", "sdiv", "sdiv")
  KF_OPERATOR(%, "frem", "srem", "srem")
  KF_BITWISE(&, "and")
  KF_BITWISE(|, "or")
  KF_BITWISE(^, "xor")
  KF_COMPARISON(==, "oeq", "eq", "eq")
  KF_COMPARISON(!=, "une", "ne", "ne")
  KF_COMPARISON(<, "olt", "slt", "ult")
  KF_COMPARISON(<=, "ole", "sle", "ule")
  KF_COMPARISON(>, "ogt", "sgt", "ugt")
  KF_COMPARISON(>=, "oge", "sge", "uge")
#undef KF_OPERATOR
#undef KF_BITWISE
#undef KF_COMPARISON
  friend Vec operator-(const Vec& a) {
    if constexpr (kIsFloat<T>) return Vec(emit("fneg " + type<T>() + " " + a.v));
    return Vec(0) - a;
  }
  friend Vec operator~(const Vec& a) {
    if constexpr (kIsFloat<T>) return bits(~Integers::bits(a));
    return Vec(two_of("xor", type<T>(), a.v, splat(scalar_type<T>(), "-1")));
  }
  friend Vec operator<<(const Vec& a, const Vec& count) { return Vec(two_of("shl", type<T>(), a.v, count.v)); }
  friend Vec operator>>(const Vec& a, const Vec& count) { return Vec(two_of("ashr", type<T>(), a.v, count.v)); }
  friend Vec operator<<(const Vec& a, int count) { return a << Vec(count); }
  friend Vec operator>>(const Vec& a, int count) { return a >> Vec(count); }  ///< keeps the sign
  Vec logical_right(int count) const { return Vec(two_of("lshr", type<T>(), v, Vec(count).v)); }
  friend MaskType operator&&(const Vec& a, const Vec& b) { return a != Vec(0) && b != Vec(0); }
  friend MaskType operator||(const Vec& a, const Vec& b) { return a != Vec(0) || b != Vec(0); }
};

using FloatVec = Vec<float>;
using DoubleVec = Vec<double>;
using Int32Vec = Vec<std::int32_t>;
using Int64Vec = Vec<std::int64_t>;
using BoolVec = Vec<std::uint8_t>;

template <class T>
Vec<T> select(const typename Vec<T>::MaskType& condition, const Vec<T>& x, const Vec<T>& y) {
  const std::string t = type<T>();
  return Vec<T>(emit("select " + vector_of("i1") + " " + condition.v + ", " + t + " " + x.v + ", " + t + " " + y.v));
}
template <class T>
Vec<T> select(const BoolVec& condition, const Vec<T>& x, const Vec<T>& y) {
  return select(typename Vec<T>::MaskType{condition.v}, x, y);
}

/// LLVM's conversion of every lane.
template <class To, class From>
Vec<To> convert_lanes(const Vec<From>& x) {
  if constexpr (std::is_same_v<To, From>) return x;
  constexpr bool kFromFloat = kIsFloat<From>, kToFloat = kIsFloat<To>, kWidens = sizeof(To) > sizeof(From);
  const char* const op = kFromFloat      ? kToFloat ? kWidens ? "fpext" : "fptrunc" : "fptosi"
                         : kIsBool<From> ? kToFloat ? "uitofp" : "zext"
                         : kToFloat      ? "sitofp"
                         : kWidens       ? "sext"
                                         : "trunc";
  return Vec<To>(emit(std::string(op) + " " + type<From>() + " " + x.v + " to " + type<To>()));
}

/// reference/elements.hpp says what conversions mean.
template <class To, class From>
Vec<To> convert(const Vec<From>& x) {
  using V = Vec<From>;
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (kIsBool<To>) {
    return BoolVec((x != V(0)).v);
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    constexpr From kEnd = sizeof(To) == 8 ? From(0x1p63) : From(0x1p31);
    return convert_lanes<To>(select(x >= V(-kEnd) && x < V(kEnd), x, V(-kEnd)));
  } else {
    return convert_lanes<To>(x);
  }
}
template <class T>
template <class S>
Vec<T>::Vec(const Vec<S>& x) : v(convert<T>(x).v) {}

}  // namespace
}  // namespace kfusion::cpu::ir
