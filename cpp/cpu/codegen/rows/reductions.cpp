#include "cpu/codegen/rows/reductions.hpp"

#include "cpu/codegen/form/row_finds.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/ops/signature.hpp"

namespace kfusion::cpu::ir {
namespace {

/// Sums and products of floats are doubles, of integers int64; extremes stay what they are of; truth is a bool.
DType accumulator_of(Op op, DType from) {
  const SignatureInfo& takes = signature_of(op);
  if (!takes.accumulates()) return takes.result(from);
  return is_float(from) ? DType::kFloat64 : DType::kInt64;
}

std::string least_of(DType t, bool largest) {
  switch (t) {
    case DType::kFloat32:
    case DType::kFloat64:
      return largest ? "0x7FF0000000000000" : "0xFFF0000000000000";
    case DType::kInt32:
      return largest ? "2147483647" : "-2147483648";
    case DType::kInt64:
      return largest ? "9223372036854775807" : "-9223372036854775808";
    default:
      return largest ? "true" : "false";
  }
}

std::string identity_of(Op op, DType held) {
  switch (op) {
    case Op::max:
      return least_of(held, false);
    case Op::min:
      return least_of(held, true);
    case Op::any:
      return "false";
    case Op::all:
      return "true";
    case Op::prod:
      return is_float(held) ? "1.0" : "1";
    default:
      return is_float(held) ? "-0.0" : "0";
  }
}

}  // namespace

Reduction::Reduction(const Form& form, int step) : form_(form), step_(step) {
  const Step& s = form.kernel.step(step);
  argument_ = s.arguments[0];
  op_ = s.op;
  from_ = compute_dtype(s.from);
  held_ = accumulator_of(op_, from_);
  lane_ = compute_type(held_);
  identity_ = identity_of(op_, held_);
}

RowReduction::RowReduction(const Form& form, int step) : Reduction(form, step) {
  const Step& s = form.kernel.step(step);
  const bool is_shifted = s.pair >= 0 && form.kernel.pairs[static_cast<std::size_t>(s.pair)].second == step &&
                          form.kernel.pairs[static_cast<std::size_t>(s.pair)].kind == Pair::Kind::kShifted;
  is_searched_for_ = ir::is_searched_for(form, step);
  by_chunks_ = (is_shifted && op_ == Op::sum && from_ == DType::kFloat32) || is_searched_for_;
}

void RowReduction::begin(Carry& carry) {
  first_ = carry.size();
  for (int j = 0; j < (by_chunks_ ? 1 : form_.registers); ++j) carry.push_back({type(), splat(lane_, identity_)});
  if (is_searched_for_) carry.push_back({vector_of("i32"), splat("i32", "0")});
}

void RowReduction::begin_chunk(Carry& carry) {
  chunk_ = carry.size();
  const std::string none = is_searched_for_ ? identity_ : "0.0";
  for (int j = 0; j < form_.registers; ++j) carry.push_back({vector_of(chunk_lane()), splat(chunk_lane(), none)});
}

std::string RowReduction::combine_in_chunk(const std::string& a, const std::string& b) const {
  return is_searched_for_ ? combine(a, b) : emit("fadd " + vector_of("float") + " " + a + ", " + b);
}

void RowReduction::end_chunk(Carry& carry, const Number& chunk) const {
  std::vector<std::string> registers;
  for (int j = 0; j < form_.registers; ++j) registers.push_back(carry[chunk_ + static_cast<std::size_t>(j)].name);
  const std::string all =
      fold(registers, [this](const std::string& a, const std::string& b) { return combine_in_chunk(a, b); });
  carry.resize(chunk_);
  std::string& before = carry[first_].name;
  if (!is_searched_for_) {
    before = combine(before, emit("fpext " + vector_of("float") + " " + all + " to " + type()));
    return;
  }
  const bool largest = op_ == Op::max;
  const std::string masks = vector_of("i1"), places = vector_of("i32");
  std::string is_new;
  if (is_float(held_)) {  // a NaN stays
    const std::string beyond =
        emit(std::string("fcmp ") + (largest ? "ugt " : "ult ") + type() + " " + all + ", " + before);
    is_new = emit("and " + masks + " " + beyond + ", " + emit("fcmp ord " + type() + " " + before + ", " + before));
  } else {
    is_new = emit(std::string("icmp ") + (largest ? "sgt " : "slt ") + type() + " " + all + ", " + before);
  }
  before = emit("select " + masks + " " + is_new + ", " + type() + " " + all + ", " + type() + " " + before);
  std::string& place = carry[first_ + 1].name;
  const std::string here = splat_of("i32", emit("trunc i64 " + chunk.name() + " to i32"));
  place = emit("select " + masks + " " + is_new + ", " + places + " " + here + ", " + places + " " + place);
}

Number RowReduction::chunk_of(const Carry& carry, const Value& number) const {
  const std::string &best = carry[first_].name, places = vector_of("i32"), masks = vector_of("i1");
  const std::string all = broadcast(number).name;
  std::string has = emit((is_float(held_) ? "fcmp oeq " : "icmp eq ") + type() + " " + best + ", " + all);
  if (is_float(held_))
    has = emit("or " + masks + " " + has + ", " + emit("fcmp uno " + type() + " " + best + ", " + best));
  const std::string chunks = emit("select " + masks + " " + has + ", " + places + " " + carry[first_ + 1].name + ", " +
                                  places + " " + splat("i32", "2147483647"));
  const std::string function = "llvm.vector.reduce.umin.v" + std::to_string(form_.lanes) + "i32";
  return Number(emit("zext i32 " + call("i32", function, {{places, chunks}}) + " to i64"));
}

std::string RowReduction::accumulator_of(const Value& x) const {
  const std::string number = emit("extractelement " + type() + " " + lift(x) + ", i64 0");
  return is_float(held_) ? emit("fadd " + lane_ + " " + number + ", 0.0") : number;
}

/// Combines all values in pairs.
std::string RowReduction::fold(std::vector<std::string> all,
                               const std::function<std::string(std::string, std::string)>& both) const {
  for (; all.size() > 1; all.resize(all.size() / 2))
    for (std::size_t j = 0; j < all.size() / 2; ++j) all[j] = both(all[j], all[j + all.size() / 2]);
  return all[0];
}

std::string Reduction::lift(const Value& x) const {
  const std::string from = vector_of(compute_type(from_));
  if (held_ == DType::kBool) {
    if (from_ == DType::kBool) return x.name;
    const std::string zero = splat(compute_type(from_), is_float(from_) ? "0.0" : "0");
    return emit((is_float(from_) ? "fcmp une " : "icmp ne ") + from + " " + x.name + ", " + zero);
  }
  if (held_ == from_) return x.name;
  const char* const op = is_float(held_) ? "fpext " : from_ == DType::kBool ? "zext " : "sext ";
  return emit(op + from + " " + x.name + " to " + type());
}

/// The extreme of floats, `b` where it is NaN. What waits for `a`, the accumulator, is two instructions: one that
/// compares and chooses (a NaN in `a` stays), and one that chooses.
std::string Reduction::extreme(const std::string& a, const std::string& b) const {
  const std::string masks = vector_of("i1"), rest = ", " + type() + " ";
  const std::string beyond =
      emit(std::string(op_ == Op::max ? "fcmp ogt " : "fcmp olt ") + type() + " " + b + ", " + a);
  const std::string nan = emit("fcmp uno " + type() + " " + b + ", " + b);
  const std::string best = emit("select " + masks + " " + beyond + rest + b + rest + a);
  return emit("select " + masks + " " + nan + rest + b + rest + best);
}

std::string Reduction::combine(const std::string& a, const std::string& b) const {
  if (is_float(held_) && (op_ == Op::max || op_ == Op::min)) return extreme(a, b);
  const auto by = [&](const char* op) { return emit(std::string(op) + " " + type() + " " + a + ", " + b); };
  const auto apply_both = [&](Op op) {
    const bool vector = text().lanes() > 1;
    const Value both[] = {{a, held_, vector}, {b, held_, vector}};
    return apply(op, held_, both).name;
  };
  switch (op_) {
    case Op::max:
      return apply_both(Op::maximum);
    case Op::min:
      return apply_both(Op::minimum);
    case Op::any:
      return by("or");
    case Op::all:
      return by("and");
    case Op::prod:
      return by(is_float(held_) ? "fmul" : "mul");
    default:
      return by(is_float(held_) ? "fadd" : "add");
  }
}

Value Reduction::finished(std::string accumulator, const Number& count) const {
  const auto all = [](const std::string& number) { return broadcast({number, DType::kFloat64, false}).name; };
  const bool vector = text().lanes() > 1;
  if (op_ == Op::mean) {
    const std::string elements = emit("sitofp i64 " + count.name() + " to double");
    accumulator = emit("fdiv " + type() + " " + accumulator + ", " + (vector ? all(elements) : elements));
  }
  const bool narrows = held_ == DType::kFloat64 && from_ == DType::kFloat32;
  if (narrows) accumulator = emit("fptrunc " + type() + " " + accumulator + " to " + vector_of("float"));
  return {accumulator, narrows ? DType::kFloat32 : held_, vector};
}

void RowReduction::take(Carry& carry, const Elements& elements, const Window& window) const {
  const bool is_plain = by_chunks_ && !is_searched_for_;  // a float, as it is
  const std::string scalar = is_plain ? "float" : lane_, lanes = vector_of(scalar);
  for (int j = 0; j < window.registers; ++j) {
    std::string& accumulator = carry[(by_chunks_ ? chunk_ : first_) + static_cast<std::size_t>(j)].name;
    const Value& x = elements.value(argument_, j);
    std::string taken = is_plain ? x.name : lift(x);
    if (window.count)
      taken = emit("select " + vector_of("i1") + " " + mask_of(*window.count) + ", " + lanes + " " + taken + ", " +
                   lanes + " " + splat(scalar, identity_));
    accumulator = is_plain ? combine_in_chunk(accumulator, taken) : combine(accumulator, taken);
  }
}

/// Accumulators in pairs, then the upper half of the lanes onto the lower.
std::string RowReduction::accumulator(const Carry& carry) const {
  std::vector<std::string> all;
  for (int j = 0; j < (by_chunks_ ? 1 : form_.registers); ++j)
    all.push_back(carry[first_ + static_cast<std::size_t>(j)].name);
  const std::string lanes = fold(all, [this](const std::string& x, const std::string& y) { return combine(x, y); });
  return fold_lanes(lanes, lane_, [this](const std::string& x, const std::string& y) { return combine(x, y); });
}

Value RowReduction::finish(const Carry& carry, const Number& count) const {
  const std::string all = accumulator(carry);
  const Lanes row(1);
  return finished(all, count);
}

}  // namespace kfusion::cpu::ir
