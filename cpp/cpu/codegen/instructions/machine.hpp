// What the functions of codegen/math/*.hpp take from the machine, as IR: instructions that only some have, cases that
// are rare, functions of libm.
#pragma once
#include <iterator>
#include <utility>
#include <vector>

#include "cpu/codegen/instructions/vector.hpp"
#include "cpu/machine_code/libm_table.hpp"

namespace kfusion::cpu::ir {
namespace {

inline const TargetFacts& target() { return text().target(); }

/// "llvm.NAME.v16f32"
template <class T>
std::string intrinsic_name(const char* name) {
  const int lanes = text().lanes();
  const std::string element = std::string(kIsFloat<T> ? "f" : "i") + std::to_string(8 * sizeof(T));
  return "llvm." + std::string(name) + "." + (lanes == 1 ? element : "v" + std::to_string(lanes) + element);
}
template <class T, class... More>
Vec<T> intrinsic(const char* name, const Vec<T>& x, const More&... more) {
  return Vec<T>(call(type<T>(), intrinsic_name<T>(name), {{type<T>(), x.v}, {type<T>(), more.v}...}));
}

/// <i64 place(0), i64 place(1), ...>, or of i32.
template <class F>
std::string lane_numbers(const char* type, const F& place) {
  std::string all;
  for (int i = 0; i < text().lanes(); ++i)
    all += (i == 0 ? "" : ", ") + std::string(type) + " " + std::to_string(place(i));
  return "<" + all + ">";
}

// ---- a register at a time: instructions and functions that know one number of lanes --------------------------------

/// `count` lanes of x from `first` on; beyond the last, from the first again.
template <class T>
std::string lanes_of(const Vec<T>& x, int first, int count) {
  const int lanes = text().lanes();
  const std::string result = "<" + std::to_string(count) + " x ";
  std::string places, whole = x.v;
  if (lanes == 1)
    whole = emit(std::string("insertelement <1 x ") + scalar_type<T>() + "> poison, " + scalar_type<T>() + " " + x.v +
                 ", i64 0");
  for (int i = 0; i < count; ++i) places += (i == 0 ? "i32 " : ", i32 ") + std::to_string((first + i) % lanes);
  const std::string from = "<" + std::to_string(lanes) + " x " + scalar_type<T>() + ">";
  return emit("shufflevector " + from + " " + whole + ", " + from + " poison, " + result + "i32> <" + places + ">");
}

/// The first `text().lanes()` lanes of registers of `count` lanes each.
template <class T>
Vec<T> join_registers(std::vector<std::string> registers, int count) {
  const int lanes = text().lanes();
  const std::string t = scalar_type<T>();
  const auto of = [&](int n) { return "<" + std::to_string(n) + " x " + t + ">"; };
  const auto shuffled = [&](const std::string& a, const std::string& b, int from, int to) {
    std::string places;
    for (int i = 0; i < to; ++i) places += (i == 0 ? "i32 " : ", i32 ") + std::to_string(i);
    return emit("shufflevector " + of(from) + " " + a + ", " + of(from) + " " + b + ", <" + std::to_string(to) +
                " x i32> <" + places + ">");
  };
  if (lanes == 1) return Vec<T>(emit("extractelement " + of(count) + " " + registers[0] + ", i64 0"));
  if (lanes < count) return Vec<T>(shuffled(registers[0], "poison", count, lanes));
  for (; registers.size() > 1; count *= 2) {
    std::vector<std::string> pairs;
    for (std::size_t i = 0; i < registers.size(); i += 2)
      pairs.push_back(shuffled(registers[i], registers[i + 1], count, 2 * count));
    registers = std::move(pairs);
  }
  return Vec<T>(registers[0]);
}

/// f("<8 x double>", names of so many lanes of each argument): the name of as many of the result.
template <class T, class F, class... X>
Vec<T> by_registers(int count, const F& f, const X&... x) {
  std::vector<std::string> registers;
  for (int first = 0; first < text().lanes(); first += count) {
    const bool whole = text().lanes() == count;
    registers.push_back(f((whole ? x.v : lanes_of(x, first, count))...));
  }
  return registers.size() == 1 && text().lanes() == count ? Vec<T>(registers[0])
                                                          : join_registers<T>(std::move(registers), count);
}

/// A function of registers of 512 bits; `more` are arguments behind the vectors.
template <class T, class... X>
Vec<T> call_512(const std::string& function, const std::vector<std::pair<std::string, std::string>>& more,
                const X&... x) {
  constexpr int kCount = 64 / sizeof(T);
  const auto one = [&](const auto&... names) {
    std::vector<std::pair<std::string, std::string>> arguments{
        {"<" + std::to_string(kCount) + " x " + scalar_type<typename X::Value>() + ">", names}...};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return call("<" + std::to_string(kCount) + " x " + scalar_type<T>() + ">", function, arguments);
  };
  return by_registers<T>(kCount, one, x...);
}

template <class T>
std::string avx512(const char* name) {
  return std::string("llvm.x86.avx512.") + name + (sizeof(T) == 8 ? ".pd.512" : ".ps.512");
}
/// All lanes, for an instruction with a mask.
template <class T>
std::pair<std::string, std::string> all_lanes() {
  return {sizeof(T) == 8 ? "i8" : "i16", "-1"};
}
const std::pair<std::string, std::string> kCurrentRounding = {"i32", "4"};

// ---- instructions ------------------------------------------------------------------------------------------------

template <class T>
Vec<T> sqrt(const Vec<T>& x) {
  return intrinsic("sqrt", x);
}
inline FloatVec relu_of_floats(const FloatVec& x) { return select(x < FloatVec(0), FloatVec(0), x); }
inline DoubleVec relu_of_floats(const DoubleVec& x) { return select(x < DoubleVec(0), DoubleVec(0), x); }

/// Whether there are instructions for it; llvm.rint would call rintf lane by lane elsewhere.
inline bool has_rounding() { return target().avx2 || target().neon; }
template <class T>
Vec<T> round_to_even(const Vec<T>& x) {
  return intrinsic("rint", x);
}

/// f of the lanes as doubles, rounded once.
template <class F, class... Vectors>
FloatVec through_doubles(const F& f, const Vectors&... x) {
  return FloatVec(f(DoubleVec(x)...));
}

/// x * y + z, rounded once or twice, whichever is faster.
template <class T>
Vec<T> mad(const Vec<T>& x, const Vec<T>& y, const Vec<T>& z) {
  if (target().fma) return intrinsic("fma", x, y, z);
  return x * y + z;
}

/// min(x, bound) and max(x, bound) that keep an x of NaN.
template <class T>
Vec<T> at_most(const Vec<T>& x, const Vec<T>& bound) {
  return select(bound < x, bound, x);
}
template <class T>
Vec<T> at_least(const Vec<T>& x, const Vec<T>& bound) {
  return select(bound > x, bound, x);
}
template <class T>
Vec<T> at_most(const Vec<T>& x, double limit) {
  return at_most(x, Vec<T>(limit));
}
template <class T>
Vec<T> at_least(const Vec<T>& x, double limit) {
  return at_least(x, Vec<T>(limit));
}

inline Int64Vec product_of_lower_halves(const Int64Vec& x, const Int64Vec& y) {
  return (x & Int64Vec(0xffffffff)) * (y & Int64Vec(0xffffffff));
}

// Where target().avx512:

/// y 2^n
template <class T>
Vec<T> scalef(const Vec<T>& y, const Vec<T>& n) {
  return call_512<T>(avx512<T>("mask.scalef"), {all_lanes<T>(), kCurrentRounding}, y, n, y);
}
/// A function of one register and a number that says how.
template <class T>
Vec<T> call_512_by(const char* name, int how, const Vec<T>& x) {
  constexpr int kLanes = 64 / sizeof(T);
  const std::string vector = "<" + std::to_string(kLanes) + " x " + scalar_type<T>() + ">";
  const auto one = [&](const std::string& from) {
    return call(vector, avx512<T>(name),
                {{vector, from}, {"i32", std::to_string(how)}, {vector, from}, all_lanes<T>(), kCurrentRounding});
  };
  return by_registers<T>(kLanes, one, x);
}
/// x - floor(x); 0 of an infinity.
inline FloatVec above_floor(const FloatVec& x) {
  constexpr int kFloor = 1, kNoExceptions = 8;
  return call_512_by("mask.reduce", kFloor | kNoExceptions, x);
}
inline FloatVec reciprocal14(const FloatVec& x) {
  return call_512<float>(avx512<float>("rcp14"), {all_lanes<float>()}, x, x);
}

/// x's exponent, and its mantissa in [3/4, 3/2), which is NaN of a negative number.
template <class T>
Vec<T> exponent_of(const Vec<T>& x) {
  return call_512<T>(avx512<T>("mask.getexp"), {all_lanes<T>(), kCurrentRounding}, x, x);
}
template <class T>
Vec<T> mantissa_of(const Vec<T>& x) {
  constexpr int kInterval = 3, kNanOfNegative = 2 << 2;
  return call_512_by("mask.getmant", kInterval | kNanOfNegative, x);
}

/// The entries at the last five bits of `place`.
inline FloatVec look_up(const float (&table)[32], const Int32Vec& place) {
  const auto half = [&](int first) {
    std::string numbers;
    for (int i = first; i < first + 16; ++i) numbers += (i == first ? "float " : ", float ") + literal<float>(table[i]);
    return "<" + numbers + ">";
  };
  const auto one = [&](const std::string& name) {
    return call("<16 x float>", "llvm.x86.avx512.vpermi2var.ps.512",
                {{"<16 x float>", half(0)}, {"<16 x i32>", name}, {"<16 x float>", half(16)}});
  };
  return by_registers<float>(16, one, place);
}

// ---- rare cases and loops ------------------------------------------------------------------------------------------

/// Whether any lane is true.
template <int bytes>
std::string any(const Mask<bytes>& m) {
  const int lanes = text().lanes();
  if (lanes == 1) return m.v;
  return call("i1", "llvm.vector.reduce.or.v" + std::to_string(lanes) + "i1", {{vector_of("i1"), m.v}});
}

/// y, but f() where the condition holds; f is taken only where it holds for a lane, which is rare.
template <class T, class F>
Vec<T> rarely(const typename Vec<T>::MaskType& condition, const F& f, const Vec<T>& y) {
  Text& t = text();
  const std::string rare = t.new_label("rare"), done = t.new_label("done"), is_any = any(condition);
  const std::string before = t.block();
  t.line("br i1 " + is_any + ", label %" + rare + ", label %" + done + ", !prof !9001");
  t.declare("!9001 = !{!\"branch_weights\", i32 1, i32 4000}");
  t.label(rare);
  const Vec<T> chosen = select(condition, f(), y);
  const std::string end = t.block();
  t.line("br label %" + done);
  t.label(done);
  return Vec<T>(emit("phi " + type<T>() + " [" + y.v + ", %" + before + "], [" + chosen.v + ", %" + end + "]"));
}

/// Takes `step` on the values, which are a struct of an array `v`, as long as `more` of them holds for a lane.
template <class Values, class More, class Step>
Values repeat_while_any(const Values& values, const More& more, const Step& step) {
  using V = std::remove_cvref_t<decltype(values.v[0])>;
  Text& t = text();
  const std::string head = t.new_label("head"), body = t.new_label("body"), done = t.new_label("done");
  const std::string before = t.block();
  t.line("br label %" + head);
  t.label(head);
  const std::size_t phis = t.reserve();
  Values current;
  for (V& x : current.v) x = V(t.name());
  t.line("br i1 " + any(more(current)) + ", label %" + body + ", label %" + done);
  t.label(body);
  const Values next = step(current);
  std::string lines;
  for (std::size_t i = 0; i < std::size(next.v); ++i)
    lines += (i == 0 ? "  " : "\n  ") + current.v[i].v + " = phi " + type<typename V::Value>() + " [" + values.v[i].v +
             ", %" + before + "], [" + next.v[i].v + ", %" + t.block() + "]";
  t.fill(phis, lines);
  t.line("br label %" + head);
  t.label(done);
  return current;
}

// ---- libm
// ------------------------------------------------------------------------------------------------------------

/// The function's address, from the table that the kernel is given.
inline std::string libm_function(int place) {
  Text& t = text();
  const std::string at = t.emit("getelementptr ptr, ptr " + t.libm + ", i64 " + std::to_string(place));
  return t.emit("load ptr, ptr " + at + ", align 8, !invariant.load !9000");
}

/// Lane by lane, by a function of arrays: f(x, y, count) leaves results in x; y may be what it likes where f has one
/// argument.
template <class T>
Vec<T> by_lanes(Libm f, const Vec<T>& x, const Vec<T>* y) {
  Text& t = text();
  t.declare("!9000 = !{}");
  const std::string function = libm_function(place_by_lanes(f)), first = t.stack(type<T>());
  const std::string second = y == nullptr ? first : t.stack(type<T>());
  t.line("store " + type<T>() + " " + x.v + ", ptr " + first + ", align 64");
  if (y != nullptr) t.line("store " + type<T>() + " " + y->v + ", ptr " + second + ", align 64");
  t.line("call void " + function + "(ptr " + first + ", ptr " + second + ", i64 " + std::to_string(t.lanes()) + ")");
  return Vec<T>(t.emit("load " + type<T>() + ", ptr " + first + ", align 64"));
}

/// A register at a time where the system has such functions, else lane by lane.
template <class... More>
DoubleVec through_libm(Libm f, const DoubleVec& x, const More&... y) {
  const int lanes = lanes_of_vector_libm(target(), f);
  if (lanes == 0) {
    if constexpr (sizeof...(y) == 0)
      return by_lanes<double>(f, x, nullptr);
    else
      return by_lanes<double>(f, x, &y...);
  }
  text().declare("!9000 = !{}");
  const std::string function = libm_function(place_by_vectors(f)), vector = "<" + std::to_string(lanes) + " x double>";
  const auto one = [&](const std::string& first, const auto&... second) {
    std::string arguments = vector + " " + first;
    ((arguments += ", " + vector + " " + second), ...);
    return emit("call " + vector + " " + function + "(" + arguments + ")");
  };
  return by_registers<double>(lanes, one, x, y...);
}

#define KF_OF_ONE(name, f) \
  inline DoubleVec name(const DoubleVec& x) { return through_libm(Libm::f, x); }
#define KF_OF_TWO(name, f) \
  inline DoubleVec name(const DoubleVec& x, const DoubleVec& y) { return through_libm(Libm::f, x, y); }
KF_OF_ONE(acos, acos)
KF_OF_ONE(acosh, acosh)
KF_OF_ONE(asin, asin)
KF_OF_ONE(asinh, asinh)
KF_OF_ONE(atan, atan)
KF_OF_ONE(atanh, atanh)
KF_OF_ONE(cos, cos)
KF_OF_ONE(cosh, cosh)
KF_OF_ONE(erf, erf)
KF_OF_ONE(sin, sin)
KF_OF_ONE(sinh, sinh)
KF_OF_ONE(tan, tan)
KF_OF_TWO(atan2, atan2)
KF_OF_TWO(hypot_of_ordered, hypot)
KF_OF_TWO(power_of_floats, pow)
KF_OF_TWO(remainder_of_division, fmod)
#undef KF_OF_ONE
#undef KF_OF_TWO

inline FloatVec sin_of_large(const FloatVec& x) { return by_lanes<float>(Libm::sinf, x, nullptr); }
inline FloatVec cos_of_large(const FloatVec& x) { return by_lanes<float>(Libm::cosf, x, nullptr); }
inline FloatVec tan_of_large(const FloatVec& x) { return by_lanes<float>(Libm::tanf, x, nullptr); }
inline FloatVec remainder_of_large(const FloatVec& x, const FloatVec& y) { return by_lanes(Libm::fmodf, x, &y); }

}  // namespace
}  // namespace kfusion::cpu::ir
