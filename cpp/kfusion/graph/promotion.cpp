#include "kfusion/graph/promotion.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/ops/signature.hpp"

namespace kfusion {
namespace {

enum Category { kTruth, kWhole, kReal };

Category category(DType t) { return t == DType::kBool ? kTruth : is_integer(t) ? kWhole : kReal; }

/// torch: the higher category wins, whatever the widths.
DType wider_torch(DType a, DType b) {
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (a != b && is_half(a) && is_half(b)) return DType::kFloat32;
  return item_bytes(a) >= item_bytes(b) ? a : b;
}

/// NumPy: the smallest type that holds both; an integer and a float, float64 (there is no int8 or int16 here).
DType wider_numpy(DType a, DType b) {
  const bool mixed = (is_integer(a) && is_float(b)) || (is_float(a) && is_integer(b));
  return mixed ? DType::kFloat64 : wider_torch(a, b);
}

/// The dtype of a Python scalar that meets nothing of its own category.
DType default_of(DType weak, bool torch) { return is_float(weak) && torch ? DType::kFloat32 : weak; }

/// The dtype that all operands promote to. Axes outrank no axes (torch), arrays outrank Python scalars: the lower rank
/// counts only where its category is higher.
DType promote(std::span<const TypedOperand> operands, Library library) {
  const bool torch = library == Library::kTorch ||
                     std::ranges::any_of(operands, [](const TypedOperand& o) { return o.dtype == DType::kBFloat16; });
  std::optional<DType> ranks[3];
  for (const TypedOperand& o : operands) {
    std::optional<DType>& rank = ranks[o.weak ? 2 : o.zero_dim && library == Library::kTorch ? 1 : 0];
    const DType t = o.weak ? default_of(o.dtype, torch) : o.dtype;
    rank = !rank ? t : torch ? wider_torch(*rank, t) : wider_numpy(*rank, t);
  }
  std::optional<DType> result;
  for (const std::optional<DType>& rank : ranks)
    if (rank && (!result || category(*rank) > category(*result))) result = rank;
  return result.value_or(DType::kFloat32);
}

/// What an op that gives floats computes in.
DType to_float(DType t, Library library) {
  if (is_float(t)) return t;
  if (library == Library::kTorch) return DType::kFloat32;
  return t == DType::kBool ? DType::kFloat16 : DType::kFloat64;
}

/// The shared dtype by signature, and the three ops that NumPy treats unlike their class.
DType compute_type(const OpInfo& op, DType promoted, Library library) {
  const bool numpy = library == Library::kNumpy;
  switch (op.op) {
    case Op::divide:  // of bools: float64, not float16
      if (numpy && promoted == DType::kBool) return DType::kFloat64;
      break;
    case Op::rint:  // integers become floats; torch's `round` leaves them
      if (numpy) return to_float(promoted, library);
      break;
    case Op::reciprocal:
      if (numpy && !is_float(promoted))
        throw TypeError(std::string("reciprocal: x must be floats, got ") + name(promoted) +
                        ", of which NumPy's reciprocal is an integer division; divide 1 by x instead");
      break;
    default:
      break;
  }
  switch (info(op.signature).becomes) {
    case Becomes::kFloat:
      return to_float(promoted, library);
    case Becomes::kBool:
      return DType::kBool;
    case Becomes::kInt64:
      return is_integer(promoted) ? DType::kInt64 : promoted;
    default:
      return promoted;
  }
}

bool fits_int32(std::int64_t value) {
  return value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max();
}

/// Integers that Python gives exactly must be exact in `t`. Comparisons never fail: they compare in int64.
DType require_fit(const OpInfo& op, std::span<const TypedOperand> operands, DType t) {
  for (const TypedOperand& o : operands) {
    if (t != DType::kInt32 || !o.weak || o.dtype != DType::kInt64 || fits_int32(o.integer)) continue;
    if (info(op.signature).gives_bool()) return DType::kInt64;
    throw std::overflow_error(std::string(op.name) + ": Python integer " + std::to_string(o.integer) +
                              " out of bounds for int32");
  }
  return t;
}

void require_exponent(std::span<const TypedOperand> operands, DType t) {
  if (is_integer(t) && operands[1].weak && operands[1].integer < 0)
    throw ValueError("power: integers to negative integer powers are not allowed");
}

/// "int32, bool and float32"
std::string list(std::span<const TypedOperand> operands) {
  std::string text;
  for (std::size_t i = 0; i < operands.size(); ++i)
    text += std::string(i == 0 ? "" : i + 1 < operands.size() ? ", " : " and ") + name(operands[i].dtype);
  return text;
}

[[noreturn]] void refuse(const OpInfo& op, const char* wanted, std::span<const TypedOperand> operands) {
  throw TypeError(std::string(op.name) + ": " + (operands.size() == 1 ? "x" : "arguments") + " must be " + wanted +
                  ", got " + list(operands));
}

const char* wanted_by(const SignatureInfo& s) {
  if (s.accepts(DType::kFloat64)) return "numbers other than bools";
  return s.accepts(DType::kBool) ? "integers or bools" : "integers";
}

}  // namespace

TypedOperand operand(const Node& n) {
  TypedOperand o{n.dtype, false, n.shape.empty(), 0};
  if (const auto* c = std::get_if<ConstantAttributes>(&n.attributes)) o.weak = c->weak, o.integer = c->integer;
  return o;
}

Library inferred_library(const Graph& g, const Node& n) {
  const auto is_torch = [&](NodeId a) { return g[a].library == Library::kTorch; };
  return std::ranges::any_of(n.arguments, is_torch) ? Library::kTorch : Library::kNumpy;
}

Place inferred_place(const Graph& g, const Node& n) {
  const auto on_device = [&](NodeId a) { return !g[a].place.on_host(); };
  const auto found = std::ranges::find_if(n.arguments, on_device);
  return found == n.arguments.end() ? Place{} : g[*found].place;
}

MapTypes map_types(Op op, std::span<const TypedOperand> operands, Library library) {
  const OpInfo& row = info(op);
  const bool chooses = info(row.signature).chooses;
  const auto numbers = chooses ? operands.subspan(1) : operands;
  const DType t = require_fit(row, numbers, compute_type(row, promote(numbers, library), library));
  if (op == Op::power) require_exponent(operands, t);

  MapTypes types{std::vector<DType>(operands.size(), t), t};
  if (chooses) types.arguments[0] = DType::kBool;
  const auto result = result_type(row, types.arguments);
  if (!result) refuse(row, wanted_by(info(row.signature)), operands);
  types.result = *result;
  return types;
}

DType reduce_argument(Op op, DType x, Library library) {
  if (signature_of(op).accepts(x)) return x;
  if (library == Library::kTorch) throw TypeError(std::string(name(op)) + ": x must be floats, got " + name(x));
  return DType::kFloat64;
}

DType contraction_type(Op op, const TypedOperand& a, const TypedOperand& b, Library library) {
  const TypedOperand both[] = {a, b};
  if (library == Library::kTorch && a.dtype != b.dtype)
    throw TypeError(std::string(name(op)) + ": torch wants both arguments of one dtype, got " + list(both));
  const DType t = promote(both, library);
  if (library == Library::kTorch && t == DType::kBool)
    throw TypeError(std::string(name(op)) + ": torch has no products of bools");
  if (!result_type(info(op), std::vector{t, t})) refuse(info(op), "floats", both);
  return t;
}

DType join_type(std::span<const TypedOperand> parts, Library library) { return promote(parts, library); }

std::optional<DType> result_type(const OpInfo& op, std::span<const DType> arguments) {
  if (arguments.empty()) return std::nullopt;
  const DType last = arguments.back();
  const auto same = [&](std::span<const DType> a) { return std::ranges::count(a, last) == std::ssize(a); };
  const auto given = [](bool accepted, DType t) { return accepted ? std::optional(t) : std::nullopt; };
  if (op.op == Op::matmul) return given(same(arguments), last);
  if (op.op == Op::conv2d) return given(same(arguments) && is_float(last), last);
  if (op.kind == OpKind::kGather) return given(is_integer(last), arguments[0]);
  if (op.kind == OpKind::kJoin) return given(same(arguments), last);
  if (op.kind == OpKind::kPartial) return given(is_float(last), compute_dtype(last));

  if (op.signature == Signature::kNone) return last;  // casts and views
  const SignatureInfo& s = info(op.signature);
  if (s.chooses && arguments[0] != DType::kBool) return std::nullopt;
  return given(same(arguments.subspan(s.chooses ? 1 : 0)) && s.accepts(last), s.result(last));
}

}  // namespace kfusion
