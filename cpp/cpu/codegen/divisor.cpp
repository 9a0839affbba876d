#define KF_IR
#include "cpu/codegen/divisor.hpp"

#include "cpu/vector/basic.hpp"

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
    const OneLane row;
    const FloatVec d(number.name);
    inverse_ = (FloatVec(1) / d).v;
    is_usable_ = is_between(d, -30, 30).v;
  }
  number_ = broadcast(number).name;
  inverse_ = broadcast({inverse_, DType::kFloat32, false}).name;
}

std::vector<Value> Divisor::divide(const std::vector<Value>& x) const {
  const FloatVec d(number_), inverse(inverse_);
  std::vector<Value> quick, exact;
  const auto all_exact = [&] {
    for (const Value& v : x) exact.push_back({(FloatVec(v.name) / d).v, DType::kFloat32});
  };
  if (!target().avx512) {
    all_exact();
    return exact;
  }
  Mask<4> safe = is_between(FloatVec(x[0].name), -100, 60);
  for (std::size_t j = 1; j < x.size(); ++j) safe = safe && is_between(FloatVec(x[j].name), -100, 60);
  Text& t = text();
  const std::string unsafe = any(!safe), quickly = t.new_label("quick"), rare = t.new_label("rare"),
                    done = t.new_label("done");
  const std::string usable = t.emit("xor i1 " + unsafe + ", true");
  t.line("br i1 " + t.emit("and i1 " + usable + ", " + is_usable_) + ", label %" + quickly + ", label %" + rare +
         ", !prof !9002");
  t.declare("!9002 = !{!\"branch_weights\", i32 4000, i32 1}");
  t.label(quickly);
  for (const Value& v : x) quick.push_back({quotient(FloatVec(v.name), d, inverse).v, DType::kFloat32});
  t.line("br label %" + done);
  t.label(rare);
  all_exact();
  t.line("br label %" + done);
  t.label(done);
  std::vector<Value> result;
  for (std::size_t j = 0; j < x.size(); ++j)
    result.push_back({t.emit("phi " + type<float>() + " [" + quick[j].name + ", %" + quickly + "], [" + exact[j].name +
                             ", %" + rare + "]"),
                      DType::kFloat32});
  return result;
}

}  // namespace kfusion::cpu::ir
