#include "cpu/codegen/elements/elements.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "cpu/codegen/elements/takes.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/math/random_words.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

std::string register_of(DType memory) { return vector_of(memory_type(memory)); }
std::string integers() { return vector_of("i64"); }

/// Whether a step's result has at most the relative error of this argument: a comparison, a difference or a logarithm
/// may show any error.
bool keeps_relative_error(const Step& s, const Step& argument) {
  if (s.kind == StepKind::kCast) return is_float(s.dtype);
  if (s.kind == StepKind::kReduce) return s.op == Op::sum && argument.is.weight;  // all of one sign
  return s.kind == StepKind::kMap && (s.op == Op::multiply || s.op == Op::divide);
}

}  // namespace

std::string copied_numbers(const Pointer& numbers, const Window& window, int j) {
  const Pointer at = numbers + (window.first + std::int64_t{text().lanes()} * j) * 8;
  return emit("load " + integers() + ", ptr " + at.name + ", align 1");
}

Elements::Elements(const Form& form, const Addresses& at) : form_(form), at_(at) {
  const std::size_t steps = form.kernel.steps.size();
  for (int s = 0; s < static_cast<int>(steps); ++s) rounded_by_store_.push_back(is_rounded_by_store(s));
  find_shown();
  values_.resize(steps), raw_.resize(steps), numbers_.resize(steps), kept_.resize(steps), divisors_.resize(steps);
  offsets_.resize(steps);
  given_.resize(steps, false);
}

/// A float that is only stored as what it is cast to: the store rounds.
bool Elements::is_rounded_by_store(int s) const {
  const Kernel& k = form_.kernel;
  if (step(s).kind != StepKind::kCast || !is_half(step(s).dtype) || compute_dtype(step(s).from) != DType::kFloat32)
    return false;
  return std::ranges::none_of(
             k.steps,
             [&](const Step& other) { return std::ranges::find(other.arguments, s) != other.arguments.end(); }) &&
         std::ranges::all_of(k.stores, [&](const Store& t) { return t.step != s || t.to.dtype == step(s).dtype; });
}

/// A weight is computed as float32; what becomes of it may be rounded to a half type all the same.
void Elements::find_shown() {
  const std::vector<Step>& steps = form_.kernel.steps;
  std::vector<std::optional<DType>> needed(steps.size());
  const auto note = [&](int s, DType shown) {
    std::optional<DType>& all = needed[static_cast<std::size_t>(s)];
    all = !all || *all == shown ? shown : DType::kFloat32;
  };
  for (const Store& t : form_.kernel.stores) note(t.step, t.parts > 0 ? DType::kFloat32 : t.to.dtype);
  shown_.resize(steps.size());
  for (std::size_t s = steps.size(); s-- > 0;) {
    shown_[s] = is_half(steps[s].dtype) ? steps[s].dtype : needed[s].value_or(DType::kFloat32);
    for (const int a : steps[s].arguments)
      note(a, keeps_relative_error(steps[s], steps[static_cast<std::size_t>(a)]) ? shown_[s] : DType::kFloat32);
  }
}

/// What is rounded next: functions like floor would show a last bit.
bool Elements::has_quick_quotient(int s) const {
  const auto rounds = [s](const Step& user) {
    const bool uses = std::ranges::find(user.arguments, s) != user.arguments.end();
    return !uses || (user.kind == StepKind::kCast && is_half(user.dtype));
  };
  return is_half(shown_[static_cast<std::size_t>(s)]) && std::ranges::all_of(form_.kernel.steps, rounds);
}

Value Elements::constant_of(const Step& s) const {
  const DType type = compute_dtype(s.dtype);
  if (is_integer(type)) {
    const Number n = at_.integer(form_.constant(s.index));
    return {type == DType::kInt64 ? n.name() : emit("trunc i64 " + n.name() + " to i32"), type, false};
  }
  const Pointer from = at_.field(Field::kNumbers) + 8 * s.index;
  const std::string number = emit("load double, ptr " + from.name + ", align 8");
  if (type == DType::kFloat64) return {number, type, false};
  if (type == DType::kBool) return {emit("fcmp une double " + number + ", 0.0"), type, false};
  return {emit("fptrunc double " + number + " to float"), type, false};
}

Value Elements::made(int s, const std::vector<Value>& arguments) const {
  const Step& of = step(s);
  const bool is_quick = of.is.quick && shown_[static_cast<std::size_t>(s)] == DType::kBFloat16;
  if (is_quick && has_quick_version(of.op, form_.target)) return apply_quick(of.op, arguments[0]);
  if (of.kind == StepKind::kMap) return apply(of.op, compute_dtype(of.from), arguments);
  if (rounded_by_store_[static_cast<std::size_t>(s)]) return arguments[0];
  return cast(arguments[0], of.from, of.dtype);
}

Value Elements::number_of(int s) const {
  const Step& of = step(s);
  if (of.kind == StepKind::kConstant) return constant_of(of);
  if (of.kind == StepKind::kLoad) {
    const Pointer from = at_.row(form_.loads[at(of.index)]);
    const std::string raw = emit(std::string("load ") + memory_type(of.dtype) + ", ptr " + from.name + ", align 1");
    return widen({raw, of.dtype, false}, of.dtype);
  }
  if (of.kind == StepKind::kTake) return number_taken(form_, at_, of, *offsets_[at(s)]);
  if (of.kind == StepKind::kIota) {
    const Number n = at_.first_number(form_.iotas[at(of.index)]);
    return cast({n.name(), DType::kInt64, false}, DType::kInt64, compute_dtype(of.dtype));
  }
  std::vector<Value> arguments;
  for (const int a : of.arguments) arguments.push_back(numbers_[at(a)]);
  return made(s, arguments);
}

void Elements::compute_numbers(Reach reach, int sweep) {
  for (std::size_t s = 0; s < values_.size(); ++s) {
    if (form_.reach(static_cast<int>(s)) != reach || step(static_cast<int>(s)).kind == StepKind::kReduce) continue;
    if (form_.schedule().ready[s] == sweep) compute_number(static_cast<int>(s));
  }
}

void Elements::compute_columns(const std::vector<int>& wanted, const Window& window) {
  const std::vector<bool> needed = needed_for(wanted);
  for (int s = 0; s < std::ssize(needed); ++s)
    if (needed[static_cast<std::size_t>(s)] && form_.is_vector(s) && !form_.along(s) &&
        !given_[static_cast<std::size_t>(s)])
      give_columns(s, registers_of(s, window));
}

void Elements::give_columns(int s, std::vector<Value> registers) {
  values_[static_cast<std::size_t>(s)] = std::move(registers);
  given_[static_cast<std::size_t>(s)] = true;
}

void Elements::compute_number(int s) {
  Value number;
  {
    const Lanes row(1);
    number = number_of(s);
  }
  set_number(s, number);
}

void Elements::set_number(int s, const Value& number) {
  const auto i = static_cast<std::size_t>(s);
  numbers_[i] = number;
  values_[i] = {broadcast(number)};
  if (step(s).is.divisor && number.type == DType::kFloat32) divisors_[i].emplace(number);
  find_offsets(s, number);
}

const Value& Elements::value(int s, int j) const {
  const std::vector<Value>& all = values_[static_cast<std::size_t>(s)];
  return all[form_.is_vector(s) ? static_cast<std::size_t>(j) : 0];
}

std::vector<bool> Elements::needed_for(const std::vector<int>& wanted) const {
  std::vector<bool> needed(values_.size(), false);
  for (const int s : wanted) needed[static_cast<std::size_t>(s)] = true;
  for (std::size_t s = needed.size(); s-- > 0;)
    if (needed[s] && !given_[s] && !kept_[s] && step(static_cast<int>(s)).kind != StepKind::kReduce)
      for (const int a : step(static_cast<int>(s)).arguments) needed[static_cast<std::size_t>(a)] = true;
  return needed;
}

void Elements::compute_run(const std::vector<int>& wanted) {
  const std::vector<bool> needed = needed_for(wanted);
  for (int s = 0; s < std::ssize(needed); ++s)
    if (needed[static_cast<std::size_t>(s)] && form_.reach(s) == Reach::kOfRun) compute_number(s);
}

void Elements::compute(const std::vector<int>& wanted, const Window& window) {
  const std::vector<bool> needed = needed_for(wanted);
  for (int s = 0; s < std::ssize(needed); ++s)
    if (needed[static_cast<std::size_t>(s)] && !given_[static_cast<std::size_t>(s)] && form_.is_vector(s))
      values_[static_cast<std::size_t>(s)] = registers_of(s, window);
}

std::vector<Value> Elements::registers_of(int s, const Window& window) {
  const Step& of = step(s);
  raw_[at(s)].clear();
  if (kept_[at(s)]) return load_kept(compute_dtype(of.dtype), *kept_[at(s)], window);
  if (of.kind == StepKind::kLoad || of.kind == StepKind::kTake) {
    raw_[at(s)] = of.kind == StepKind::kTake ? taken(s, window) : load(form_.loads[at(of.index)], of.dtype, window, 0);
    std::vector<Value> widened;
    for (const Value& raw : raw_[at(s)]) widened.push_back(widen(raw, of.dtype));
    return widened;
  }
  if (of.kind == StepKind::kIota) return count_off(form_.iotas[at(of.index)], compute_dtype(of.dtype), window);
  if (of.is.row_quotient && divisors_[at(of.arguments[1])]) {
    std::vector<Value> x;
    for (int j = 0; j < window.registers; ++j) x.push_back(value(of.arguments[0], j));
    return divisors_[at(of.arguments[1])]->divide(x, has_quick_quotient(s), window.count.has_value());
  }
  const auto is_number = [&](int a) { return !form_.is_vector(a); };
  if (of.is.random_block && is_number(of.arguments[1]) && is_number(of.arguments[2])) {
    std::vector<Value> positions;
    for (int j = 0; j < window.registers; ++j) positions.push_back(value(of.arguments[0], j));
    return random_words(positions, numbers_[at(of.arguments[1])], numbers_[at(of.arguments[2])]);
  }
  if (of.kind == StepKind::kMap && window.registers > 1 && is_better_interleaved(of.op, form_.target)) {
    std::vector<std::vector<Value>> arguments(of.arguments.size());
    for (std::size_t a = 0; a < arguments.size(); ++a)
      for (int j = 0; j < window.registers; ++j) arguments[a].push_back(value(of.arguments[a], j));
    return apply(of.op, compute_dtype(of.from), arguments);
  }
  std::vector<Value> registers;
  for (int j = 0; j < window.registers; ++j) {
    std::vector<Value> arguments;
    for (const int a : of.arguments) arguments.push_back(value(a, j));
    registers.push_back(made(s, arguments));
  }
  return registers;
}

std::vector<Value> Elements::load(const Layout& from, DType memory, const Window& window, const Number& offset) {
  const Number first = offset + window.first * at_.stride(from);
  const std::string type = register_of(memory);
  const std::int64_t bytes = form_.lanes * from.item;
  Pointer p = at_.row(from) + first;
  const bool masked = window.count && can_mask(form_.target, from.item);
  std::vector<Value> registers;
  if (from.reach == Reach::kDense && masked) {
    const std::string raw = load_lanes(p, from.item, mask_of(*window.count));
    const std::string typed = emit("bitcast " + vector_of(bits_of_item(from.item)) + " " + raw + " to " + type);
    return {{typed, memory, true}};
  }
  if (from.reach != Reach::kDense || window.count) {
    const Number count = window.count ? *window.count : Number(std::int64_t{form_.lanes} * window.registers);
    copy_elements(p, at_.stride(from), copy(), from.item, from.item, count);
    p = copy();
  }
  for (int j = 0; j < window.registers; ++j) {
    const std::string raw = emit("load " + type + ", ptr " + (p + j * bytes).name + ", align 1");
    registers.push_back({raw, memory, true});
  }
  return registers;
}

/// The last register of a row is kept as a whole.
void Elements::keep(int s, const Pointer& row, const Window& window) const {
  const DType type = compute_dtype(step(s).dtype);
  const auto item = static_cast<std::int64_t>(item_bytes(type));
  for (int j = 0; j < window.registers; ++j) {
    const Pointer to = row + (window.first + std::int64_t{form_.lanes} * j) * item;
    text().line("store " + vector_of(memory_type(type)) + " " + narrow(value(s, j), type).name + ", ptr " + to.name +
                ", align 1");
  }
}

std::vector<Value> Elements::load_kept(DType type, const Pointer& row, const Window& window) const {
  const auto item = static_cast<std::int64_t>(item_bytes(type));
  std::vector<Value> registers;
  for (int j = 0; j < window.registers; ++j) {
    const Pointer from = row + (window.first + std::int64_t{form_.lanes} * j) * item;
    const std::string raw = emit("load " + vector_of(memory_type(type)) + ", ptr " + from.name + ", align 1");
    registers.push_back(widen({raw, type, true}, type));
  }
  return registers;
}

std::vector<Value> Elements::count_off(const Layout& iota, DType type, const Window& window) {
  std::vector<Value> registers;
  if (iota.copied) {
    for (int j = 0; j < window.registers; ++j) {
      const std::string all = copied_numbers(at_.row(iota), window, j);
      registers.push_back(cast({all, DType::kInt64, true}, DType::kInt64, type));
    }
    return registers;
  }
  const Number stride = at_.stride(iota), first = at_.first_number(iota) + window.first * stride;
  const std::string lanes = emit("mul " + integers() + " " + numbered("i64") + ", " + splat_of("i64", stride.name()));
  for (int j = 0; j < window.registers; ++j) {
    const Number begin = first + stride * (std::int64_t{form_.lanes} * j);
    const std::string all = emit("add " + integers() + " " + lanes + ", " + splat_of("i64", begin.name()));
    registers.push_back(cast({all, DType::kInt64, true}, DType::kInt64, type));
  }
  return registers;
}

void Elements::store(const Layout& to, DType memory, int s, const Window& window, bool past_caches) {
  const bool is_copy = is_half(memory) && step(s).dtype == memory && !raw_[static_cast<std::size_t>(s)].empty();
  std::vector<std::string> registers;
  for (int j = 0; j < window.registers; ++j)
    registers.push_back(is_copy ? raw_[static_cast<std::size_t>(s)][static_cast<std::size_t>(j)].name
                                : narrow(value(s, j), memory).name);
  put(to, memory, registers, window, past_caches);
}

void Elements::clear(const Layout& sums, DType memory, const Window& window) {
  const std::string nothing = splat(memory_type(memory), "-0.0");
  put(sums, memory, std::vector(static_cast<std::size_t>(window.registers), nothing), window, false);
}

void Elements::add_to(const Layout& sums, DType memory, int s, const Window& window) {
  std::vector<std::string> registers;
  for (const Value& sum : load(sums, memory, window, 0)) {
    const std::string x = cast(value(s, static_cast<int>(registers.size())), step(s).dtype, memory).name;
    registers.push_back(emit("fadd " + register_of(memory) + " " + sum.name + ", " + x));
  }
  put(sums, memory, registers, window, false);
}

void Elements::put(const Layout& to, DType memory, const std::vector<std::string>& registers, const Window& window,
                   bool past_caches) {
  const std::string type = register_of(memory);
  const std::int64_t bytes = form_.lanes * to.item;
  const Pointer p = at_.row(to) + window.first * at_.stride(to);
  const bool dense = to.reach == Reach::kDense;
  if (dense && window.count && can_mask(form_.target, to.item)) {
    const std::string raw = emit("bitcast " + type + " " + registers[0] + " to " + vector_of(bits_of_item(to.item)));
    store_lanes(raw, to.item, p, mask_of(*window.count));
    return;
  }
  const bool copied = !dense || window.count;
  for (int j = 0; j < window.registers; ++j) {
    const std::string at = ((copied ? copy() : p) + j * bytes).name;
    const bool streamed = past_caches && !copied;
    text().line("store " + type + " " + registers[static_cast<std::size_t>(j)] + ", ptr " + at +
                (streamed ? ", align " + std::to_string(std::min<std::int64_t>(bytes, 64)) + ", !nontemporal !0"
                          : ", align 1"));
  }
  if (!copied) return;
  const Number count = window.count ? *window.count : Number(std::int64_t{form_.lanes} * window.registers);
  copy_elements(copy(), to.item, p, at_.stride(to), to.item, count);
}

void Elements::store_number(const Layout& to, DType memory, int s) const {
  const Lanes row(1);
  const Value raw = narrow(number(s), memory);
  text().line(std::string("store ") + memory_type(memory) + " " + raw.name + ", ptr " + at_.row(to).name + ", align 1");
}

const Pointer& Elements::copy() {
  if (!copy_) copy_ = room(std::int64_t{form_.lanes} * form_.registers * 8);
  return *copy_;
}

}  // namespace kfusion::cpu::ir
