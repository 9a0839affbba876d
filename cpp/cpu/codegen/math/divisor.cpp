#include "cpu/codegen/math/divisor.hpp"

#include "cpu/codegen/instructions/flow.hpp"
#include "cpu/codegen/math/basic.hpp"

namespace kfusion::cpu::ir {
namespace {

/// 2^low <= |x| < 2^high
Mask<4> is_between(const FloatVec& x, int low, int high) {
  const Int32Vec bits = Int32Vec::bits(absolute(x)) - Int32Vec((127 + low) << 23);
  return {two_of("icmp ult", type<std::int32_t>(), bits.v, Int32Vec((high - low) << 23).v)};
}

FloatVec quotient(const FloatVec& x, const FloatVec& d, const FloatVec& inverse) {
  const FloatVec y = x * inverse;
  return mad(mad(-y, d, x), inverse, y);
}

}  // namespace

Divisor::Divisor(const Value& number) {
  {
    const Lanes row(1);
    const FloatVec d(number.name);
    inverse_ = (FloatVec(1) / d).v;
    is_usable_ = is_between(d, -30, 30).v;
  }
  number_ = broadcast(number).name;
  inverse_ = broadcast({inverse_, DType::kFloat32, false}).name;
}

std::vector<Value> Divisor::divide(const std::vector<Value>& x, bool is_quick, bool is_end) const {
  const FloatVec d(number_), inverse(inverse_);
  Carry carry;
  for (const Value& v : x) carry.push_back({type<float>(), v.name});
  const auto each = [&](const auto& f) {
    for (std::size_t j = 0; j < x.size(); ++j) carry[j].name = f(FloatVec(x[j].name)).v;
  };
  const auto all = [&](const auto& condition) -> Condition {
    Mask<4> both = condition(FloatVec(x[0].name));
    for (std::size_t j = 1; j < x.size(); ++j) both = both && condition(FloatVec(x[j].name));
    return {emit("xor i1 true, " + any(!both))};
  };
  const auto is_safe = [](const FloatVec& v) { return is_between(v, -100, 60); };
  const auto is_safe_or_zero = [&](const FloatVec& v) { return is_safe(v) || v == FloatVec(0); };
  const auto quick = [&](const FloatVec& v) { return quotient(v, d, inverse); };
  const auto divide = [&] { each([&](const FloatVec& v) { return v / d; }); };
  const auto keep_zeros = [&] { each([&](const FloatVec& v) { return select(is_safe(v), quick(v), v * inverse); }); };
  const Condition usable{is_usable_};
  if (is_quick)
    when(usable, carry, [&] { each([&](const FloatVec& v) { return v * inverse; }); }, divide);
  else if (target().avx512 && !is_end)  // a masked softmax has many zeros
    when(
        usable && all(is_safe), carry, [&] { each(quick); },
        [&] { when(usable && all(is_safe_or_zero), carry, keep_zeros, divide); });
  else
    divide();
  std::vector<Value> results;
  for (const Carried& c : carry) results.push_back({c.name, DType::kFloat32});
  return results;
}

}  // namespace kfusion::cpu::ir
