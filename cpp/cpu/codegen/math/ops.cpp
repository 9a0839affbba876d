#include "cpu/codegen/math/ops.hpp"

#include <array>
#include <stdexcept>

#include "cpu/codegen/math/map.hpp"
#include "cpu/codegen/math/quick.hpp"

namespace kfusion::cpu::ir {
namespace {

/// f(T()) for a compute type.
template <class F>
auto with_compute_type(DType t, const F& f) {
  switch (t) {
    case DType::kFloat64:
      return f(double());
    case DType::kBool:
      return f(std::uint8_t());
    case DType::kInt32:
      return f(std::int32_t());
    case DType::kInt64:
      return f(std::int64_t());
    default:
      return f(float());
  }
}

[[noreturn]] void refuse(Op op, DType type) {
  throw std::logic_error("kfusion: no kernel of " + std::string(name(op)) + " takes " + name(type));
}

/// A row over one compute type. What the row does not have is taken from the first argument and not used.
template <Op op, class T>
Value map_of(DType type, std::span<const Value> arguments) {
  if constexpr (!kSignatureOf<op>.accepts(kDtypeOf<T>)) {
    refuse(op, type);
  } else {
    const auto argument = [&](std::size_t i) { return arguments.size() > i ? arguments[i].name : std::string(); };
    const auto result = apply<op, T>(FirstOf<op, T>(argument(0)), Vec<T>(argument(1)), Vec<T>(argument(2)));
    return {result.v, kSignatureOf<op>.gives_bool() ? DType::kBool : type};
  }
}

template <Op op>
Value map_of(DType type, std::span<const Value> arguments) {
  return with_compute_type(type, [&]<class T>(T) { return map_of<op, T>(type, arguments); });
}

Value map_of(Op op, DType type, std::span<const Value> arguments) {
  switch (op) {
#define KF_MAP(name, ...) \
  case Op::name:          \
    return map_of<Op::name>(type, arguments);
#include "kfusion/ops/ops.def"
    default:
      refuse(op, type);
  }
}

/// While vectors are numbers unless `vector`.
template <class F>
Value as(bool vector, const F& f) {
  const Lanes width(vector ? text().lanes() : 1);
  Value result = f();
  result.vector = vector;
  return result;
}

// ---- elements in memory -----------------------------------------------------------------------------------------

using Words = std::string;  ///< 16 bits in each lane

std::string convert_name(const char* op, const char* from, const std::string& x, const char* to) {
  return emit(std::string(op) + " " + vector_of(from) + " " + x + " to " + vector_of(to));
}

/// Whether there are instructions for float16.
bool has_half() { return target().avx2 || target().neon; }

/// Converts without such instructions. A subnormal's implicit one is added as exponent and taken off again as a number,
/// so that no subnormal float is ever an operand.
FloatVec float_of_half_bits(const Int32Vec& half) {
  const Int32Vec magnitude = (half & Int32Vec(0x7fff)) << 13, exponent = half & Int32Vec(0x7c00);
  const FloatVec one = FloatVec::bits(Int32Vec(113 << 23));
  const Int32Vec subnormal = Int32Vec::bits(FloatVec::bits(magnitude + Int32Vec(113 << 23)) - one);
  const Int32Vec finite = select(exponent == Int32Vec(0), subnormal, magnitude + Int32Vec(112 << 23));
  const Int32Vec bits = select(exponent == Int32Vec(0x7c00), magnitude | Int32Vec(0x7f800000), finite);
  return FloatVec::bits(bits | (half & Int32Vec(0x8000)) << 16);
}
/// Rounded to nearest even; NaN stays NaN. Below 2^-14, 0.5 is added, which leaves the subnormal half in the last bits.
Int32Vec half_bits_of_float(const FloatVec& x) {
  const Int32Vec all = Int32Vec::bits(x), magnitude = all & Int32Vec(0x7fffffff);
  const Int32Vec odd = magnitude.logical_right(13) & Int32Vec(1);
  const Int32Vec normal = (magnitude - Int32Vec(112 << 23) + Int32Vec(0xfff) + odd).logical_right(13);
  const Int32Vec subnormal = Int32Vec::bits(FloatVec::bits(magnitude) + FloatVec(0.5)) - Int32Vec(0x3f000000);
  const Int32Vec nan = Int32Vec(0x7e00) | (magnitude.logical_right(13) & Int32Vec(0x3ff));
  const Int32Vec finite = select(magnitude < Int32Vec(0x38800000), subnormal, normal);
  const Int32Vec number = select(magnitude >= Int32Vec(0x47800000), Int32Vec(0x7c00), finite);
  return select(magnitude > Int32Vec(0x7f800000), nan, number) | (all.logical_right(16) & Int32Vec(0x8000));
}

/// Rounded to nearest even, in the upper 16 bits; the lower ones are left over.
Int32Vec bfloat_bits_of_float(const FloatVec& x) {
  const Int32Vec bits = Int32Vec::bits(x);
  const Int32Vec rounded = bits + Int32Vec(0x7fff) + (bits.logical_right(16) & Int32Vec(1));
  return select(x != x, bits | Int32Vec(0x400000), rounded);
}

Words words_of(const Int32Vec& x) { return convert_name("trunc", "i32", x.v, "i16"); }
/// One shuffle of two registers, where a shift and a truncation of each are six instructions.
Words upper_words(const Int32Vec& x) {
  const int lanes = text().lanes();
  if (lanes == 1 || !target().avx512) return words_of(x.logical_right(16));
  const std::string all = "<" + std::to_string(2 * lanes) + " x i16>";
  const std::string words = emit("bitcast " + type<std::int32_t>() + " " + x.v + " to " + all);
  const std::string odd = lane_numbers("i32", [](int lane) { return 2 * lane + 1; });
  return emit("shufflevector " + all + " " + words + ", " + all + " poison, " + vector_of("i32") + " " + odd);
}
Int32Vec lanes_of_words(const Words& x) { return Int32Vec(convert_name("zext", "i16", x, "i32")); }

FloatVec widen_half(DType half, const Words& raw) {
  if (half == DType::kBFloat16) return FloatVec::bits(lanes_of_words(raw) << 16);
  if (!has_half()) return float_of_half_bits(lanes_of_words(raw));
  return FloatVec(convert_name("fpext", "half", convert_name("bitcast", "i16", raw, "half"), "float"));
}
Words narrow_half(DType half, const FloatVec& x) {
  if (half == DType::kBFloat16) return upper_words(bfloat_bits_of_float(x));
  if (!has_half()) return words_of(half_bits_of_float(x));
  return convert_name("bitcast", "half", convert_name("fptrunc", "float", x.v, "half"), "i16");
}
/// A float whose last bit says that something is missing: what rounds that once more rounds the number once.
FloatVec rounded_to_odd(const DoubleVec& x) {
  const FloatVec near(x);
  const DoubleVec back(near), zero(0);
  const BoolVec beyond((x > zero && back > x) || (x < zero && back < x)), inexact(back != x);
  return FloatVec::bits((Int32Vec::bits(near) - Int32Vec(beyond)) | Int32Vec(inexact));
}
/// Rounded to a half type, as float32.
FloatVec round_to(DType half, const FloatVec& x) {
  if (half == DType::kBFloat16) return FloatVec::bits(bfloat_bits_of_float(x) & Int32Vec(-0x10000));
  return widen_half(half, narrow_half(half, x));
}

/// Converts a value of a compute type to another one.
template <class To>
Vec<To> converted(const Value& x) {
  return with_compute_type(x.type, [&]<class From>(From) { return Vec<To>(Vec<From>(x.name)); });
}

}  // namespace

const char* compute_type(DType t) {
  return with_compute_type(t, []<class T>(T) { return scalar_type<T>(); });
}
const char* memory_type(DType t) { return is_half(t) ? "i16" : t == DType::kBool ? "i8" : compute_type(t); }

Value constant(double value, DType type) {
  const auto text_of = [value]<class T>(T) { return literal<T>(value); };
  return {with_compute_type(type, text_of), compute_dtype(type), false};
}
Value constant(std::int64_t value, DType type) {
  const auto text_of = [value]<class T>(T) { return literal<T>(value); };
  return {with_compute_type(type, text_of), compute_dtype(type), false};
}

Value broadcast(const Value& x) {
  const int lanes = text().vector_lanes();
  if (x.vector || lanes == 1) return {x.name, x.type, true};
  const char* const t = compute_type(x.type);
  if (x.name[0] != '%') return {splat(t, x.name), x.type, true};
  const std::string vector = vector_of(t);
  const std::string first = emit("insertelement " + vector + " poison, " + t + " " + x.name + ", i64 0");
  return {emit("shufflevector " + vector + " " + first + ", " + vector + " poison, " + vector_of("i32") +
               " zeroinitializer"),
          x.type, true};
}

Value apply(Op op, DType type, std::span<const Value> arguments) {
  bool vector = false;
  for (const Value& a : arguments) vector = vector || a.vector;
  std::array<Value, 3> all;
  for (std::size_t i = 0; i < arguments.size(); ++i) all[i] = vector ? broadcast(arguments[i]) : arguments[i];
  return as(vector, [&] { return map_of(op, compute_dtype(type), {all.data(), arguments.size()}); });
}

bool has_quick_version(Op op, const TargetFacts& target) {
  return target.avx512 && (op == Op::exp || op == Op::exp2 || op == Op::sigmoid);
}

Value apply_quick(Op op, const Value& x) {
  return as(x.vector, [&]() -> Value {
    const FloatVec of(x.name);
    const FloatVec y = op == Op::exp ? quick_exp(of) : op == Op::exp2 ? quick_exp2(of) : quick_sigmoid(of);
    return {y.v, DType::kFloat32};
  });
}

std::vector<Value> apply(Op op, DType type, std::span<const std::vector<Value>> arguments) {
  const int lanes = text().lanes();
  const std::size_t registers = arguments[0].size();
  const auto together = [&]<class T>(T, const std::vector<Value>& x) {
    std::vector<std::string> names;
    for (const Value& v : x) names.push_back(broadcast(v).name);
    const Lanes wide(text().lanes() * static_cast<int>(registers));
    return Value{join_registers<T>(std::move(names), lanes).v, x[0].type};
  };
  std::vector<Value> all, results;
  for (const std::vector<Value>& x : arguments)
    all.push_back(with_compute_type(x[0].type, [&](auto t) { return together(t, x); }));
  const Lanes wide(text().lanes() * static_cast<int>(registers));
  const Value y = apply(op, type, all);
  for (std::size_t j = 0; j < registers; ++j)
    results.push_back(
        {with_compute_type(y.type,
                           [&]<class T>(T) { return lanes_of(Vec<T>(y.name), static_cast<int>(j) * lanes, lanes); }),
         y.type});
  return results;
}

Value cast(const Value& x, DType from, DType to) {
  const Value held{x.name, compute_dtype(from)};
  const bool exact = held.type == DType::kFloat32 || held.type == DType::kBool;  // as a float
  return as(x.vector, [&]() -> Value {
    if (is_half(to))
      return {round_to(to, exact ? converted<float>(held) : rounded_to_odd(converted<double>(held))).v,
              compute_dtype(to)};
    return {with_compute_type(to, [&]<class To>(To) { return converted<To>(held).v; }), to};
  });
}

Value widen(const Value& raw, DType memory) {
  return as(raw.vector, [&]() -> Value {
    if (is_half(memory)) return {widen_half(memory, raw.name).v, DType::kFloat32};
    if (memory == DType::kBool) return {two_of("icmp ne", vector_of("i8"), raw.name, splat("i8", "0")), memory};
    return {raw.name, memory};
  });
}

Value narrow(const Value& x, DType memory) {
  return as(x.vector, [&]() -> Value {
    if (is_half(memory)) return {narrow_half(memory, FloatVec(x.name)), memory};
    if (memory == DType::kBool) return {convert_name("zext", "i1", x.name, "i8"), memory};
    return {x.name, memory};
  });
}

}  // namespace kfusion::cpu::ir
