#include "cpu/codegen/instructions/flow.hpp"

#include <utility>

namespace kfusion::cpu::ir {
namespace {

Number of(const char* op, const Number& a, const Number& b) {
  return Number(emit(std::string(op) + " i64 " + a.name() + ", " + b.name()));
}
Condition compared(const char* how, const Number& a, const Number& b) {
  return {emit(std::string("icmp ") + how + " i64 " + a.name() + ", " + b.name())};
}

void jump(const std::string& label) { text().line("br label %" + label); }
void jump(const Condition& c, const std::string& yes, const std::string& no) {
  text().line("br i1 " + c.name + ", label %" + yes + ", label %" + no);
}
/// A block whose name is known: what comes before it falls through.
std::string begin_block(const char* what) {
  const std::string label = text().new_label(what);
  jump(label);
  text().label(label);
  return label;
}

void define(const std::string& name, const std::string& rhs) { text().line(name + " = " + rhs); }

std::string phi(const std::string& type, const std::string& a, const std::string& from_a, const std::string& b,
                const std::string& from_b) {
  return "phi " + type + " [ " + a + ", %" + from_a + " ], [ " + b + ", %" + from_b + " ]";
}

}  // namespace

Number operator+(const Number& a, const Number& b) {
  if (a.is_literal() && b.is_literal()) return a.value() + b.value();
  return a.is(0) ? b : b.is(0) ? a : of("add", a, b);
}
Number operator-(const Number& a, const Number& b) {
  if (a.is_literal() && b.is_literal()) return a.value() - b.value();
  return b.is(0) ? a : of("sub", a, b);
}
Number operator*(const Number& a, const Number& b) {
  if (a.is_literal() && b.is_literal()) return a.value() * b.value();
  return a.is(1) ? b : b.is(1) ? a : of("mul", a, b);
}
Number operator&(const Number& a, std::int64_t mask) { return of("and", a, mask); }
Number quotient(const Number& a, const Number& b) { return b.is(1) ? a : of("udiv", a, b); }
Number least(const Number& a, const Number& b) { return choose(a < b, a, b); }

Condition operator<(const Number& a, const Number& b) { return compared("slt", a, b); }
Condition operator<=(const Number& a, const Number& b) { return compared("sle", a, b); }
Condition operator==(const Number& a, const Number& b) { return compared("eq", a, b); }
Condition operator&&(const Condition& a, const Condition& b) { return {emit("and i1 " + a.name + ", " + b.name)}; }
Number choose(const Condition& c, const Number& yes, const Number& no) {
  return Number(emit("select i1 " + c.name + ", i64 " + yes.name() + ", i64 " + no.name()));
}

Pointer operator+(const Pointer& p, const Number& bytes) {
  return bytes.is(0) ? p : Pointer{emit("getelementptr i8, ptr " + p.name + ", i64 " + bytes.name())};
}
Number address_of(const Pointer& p) { return Number(emit("ptrtoint ptr " + p.name + " to i64")); }

Pointer pointer_at(const Pointer& array, std::int64_t index) {
  return {emit("load ptr, ptr " + (array + index * 8).name + ", align 8")};
}
Number number_at(const Pointer& array, std::int64_t index) {
  return Number(emit("load i64, ptr " + (array + index * 8).name + ", align 8"));
}
void put_number(const Number& n, const Pointer& array, std::int64_t index) {
  text().line("store i64 " + n.name() + ", ptr " + (array + index * 8).name + ", align 8");
}

void prefetch(const Pointer& p, Fetch how) {
  text().declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)");
  text().line("call void @llvm.prefetch.p0(ptr " + p.name + (how == Fetch::kToWrite ? ", i32 1" : ", i32 0") +
              (how == Fetch::kFar ? ", i32 2" : ", i32 3") + ", i32 1)");
}

Pointer room(std::int64_t bytes) { return {text().stack("[" + std::to_string(bytes) + " x i8]")}; }

namespace {

/// for (i = begin; i <= last;) i = body(i); returns where i ends.
Number loop(const Number& begin, const Number& last, Carry& carry, const std::function<Number(const Number& i)>& body) {
  const std::string before = begin_block("before");
  const std::string head = text().new_label("loop"), latch = text().new_label("next"),
                    after = text().new_label("after");
  const Number next(text().name());
  jump(begin <= last, head, after);
  text().label(head);
  const Number i(emit(phi("i64", begin.name(), before, next.name(), latch)));
  const Carry first = carry;
  std::vector<std::string> left;
  for (Carried& c : carry) {
    left.push_back(text().name());
    c.name = emit(phi(c.type, c.name, before, left.back(), latch));
  }
  const Number following = body(i);
  jump(latch);
  text().label(latch);
  define(next.name(), "bitcast i64 " + following.name() + " to i64");
  for (std::size_t k = 0; k < carry.size(); ++k)
    define(left[k], "bitcast " + carry[k].type + " " + carry[k].name + " to " + carry[k].type);
  jump(next <= last, head, after);
  text().label(after);
  for (std::size_t k = 0; k < carry.size(); ++k)
    carry[k].name = emit(phi(carry[k].type, first[k].name, before, left[k], latch));
  return Number(emit(phi("i64", begin.name(), before, next.name(), latch)));
}

}  // namespace

Number for_each(const Number& begin, const Number& end, const Number& increment, Carry& carry,
                const std::function<void(const Number& i)>& body) {
  const auto one = [&](const Number& i) {
    body(i);
    return i + increment;
  };
  return loop(begin, end - increment, carry, one);
}

void repeat(const Number& begin, const Number& end, Carry& carry, const std::function<Number(const Number& i)>& body) {
  loop(begin, end - 1, carry, body);
}

Number for_each(const Number& begin, const Number& end, const Number& increment,
                const std::function<void(const Number& i)>& body) {
  Carry nothing;
  return for_each(begin, end, increment, nothing, body);
}

void when(const Condition& c, Carry& carry, const std::function<void()>& then, const std::function<void()>& otherwise) {
  const std::string yes = text().new_label("then"), no = text().new_label("else"), after = text().new_label("after");
  jump(c, yes, no);
  text().label(yes);
  const Carry before = carry;
  then();
  const std::string end_of_yes = begin_block("done");
  jump(after);
  const Carry of_yes = std::exchange(carry, before);
  text().label(no);
  if (otherwise) otherwise();
  const std::string end_of_no = begin_block("done");
  jump(after);
  text().label(after);
  for (std::size_t k = 0; k < carry.size(); ++k)
    carry[k].name = emit(phi(carry[k].type, of_yes[k].name, end_of_yes, carry[k].name, end_of_no));
}

void when(const Condition& c, const std::function<void()>& then, const std::function<void()>& otherwise) {
  Carry nothing;
  when(c, nothing, then, otherwise);
}

}  // namespace kfusion::cpu::ir
