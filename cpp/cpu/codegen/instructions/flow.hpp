// Numbers of 64 bits, addresses and control flow. Everything here appends to the current text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cpu/codegen/instructions/ir.hpp"

namespace kfusion::cpu::ir {

/// An i64: a literal, or the name of a value.
class Number {
 public:
  Number(std::int64_t value) : name_(std::to_string(value)), value_(value), literal_(true) {}
  explicit Number(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool is(std::int64_t value) const { return literal_ && value_ == value; }
  bool is_literal() const { return literal_; }
  std::int64_t value() const { return value_; }

 private:
  std::string name_;
  std::int64_t value_ = 0;
  bool literal_ = false;
};

Number operator+(const Number& a, const Number& b);
Number operator-(const Number& a, const Number& b);
Number operator*(const Number& a, const Number& b);
Number operator&(const Number& a, std::int64_t mask);
Number quotient(const Number& a, const Number& b);  ///< of numbers that are not negative
Number least(const Number& a, const Number& b);

/// An i1.
struct Condition {
  std::string name;
};
Condition operator<(const Number& a, const Number& b);
Condition operator<=(const Number& a, const Number& b);
Condition operator==(const Number& a, const Number& b);
Condition operator&&(const Condition& a, const Condition& b);
Number choose(const Condition& c, const Number& yes, const Number& no);

/// An address; offsets are in bytes.
struct Pointer {
  std::string name;
};
Pointer operator+(const Pointer& p, const Number& bytes);
Number address_of(const Pointer& p);

/// Entry `index` of an array of pointers, or of i64.
Pointer pointer_at(const Pointer& array, std::int64_t index);
Number number_at(const Pointer& array, std::int64_t index);
void put_number(const Number& n, const Pointer& array, std::int64_t index);

/// Begins to bring a line of memory to a cache: the second-level one, the first, or the first to write to it.
enum class Fetch : std::uint8_t { kFar, kNear, kToWrite };
void prefetch(const Pointer& p, Fetch how = Fetch::kFar);

/// Memory of the function, at a line of the cache.
Pointer room(std::int64_t bytes);

/// A value with its type that a loop or a branch gives anew. The name that it gets is known before the body is written:
/// what the body leaves becomes it by a bitcast to its own type, for which there is no instruction.
struct Carried {
  std::string type, name;
};
using Carry = std::vector<Carried>;

/// for (i = begin; i + increment <= end; i += increment) body(i); returns where i ends. `carry` is what the body finds
/// and leaves, and after the loop what the last one left.
Number for_each(const Number& begin, const Number& end, const Number& increment, Carry& carry,
                const std::function<void(const Number& i)>& body);
Number for_each(const Number& begin, const Number& end, const Number& increment,
                const std::function<void(const Number& i)>& body);

/// for (i = begin; i < end;) i = body(i).
void repeat(const Number& begin, const Number& end, Carry& carry, const std::function<Number(const Number& i)>& body);

/// if (c) then(); else otherwise();
void when(const Condition& c, Carry& carry, const std::function<void()>& then,
          const std::function<void()>& otherwise = {});
void when(const Condition& c, const std::function<void()>& then, const std::function<void()>& otherwise = {});

}  // namespace kfusion::cpu::ir
