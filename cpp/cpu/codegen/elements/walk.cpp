#include "cpu/codegen/elements/walk.hpp"

#include "cpu/codegen/form/policy.hpp"

namespace kfusion::cpu::ir {
namespace {

Number walk_registers(const Form& form, const Number& begin, const Number& end, bool past_caches, Carry& carry,
                      const Take& take) {
  const int registers = form.registers;
  return for_each(begin, end, std::int64_t{form.lanes} * registers, carry,
                  [&](const Number& i) { take({i, registers, std::nullopt}, past_caches); });
}

void walk_masked(const Form& form, const Number& begin, const Number& end, Carry& carry, const Take& take) {
  const std::int64_t lanes = form.lanes;
  for_each(begin, end + (lanes - 1), lanes, carry,
           [&](const Number& i) { take({i, 1, least(lanes, end - i)}, false); });
}

}  // namespace

Number first_aligned(const std::vector<const Layout*>& stores, const Addresses& at, const Number& begin,
                     const Number& end) {
  Number first = begin;
  std::optional<Condition> all;
  for (const Layout* p : stores) {
    if (p->reach != Reach::kDense) continue;
    const Number address = address_of(at.row(*p));
    if (!all) first = begin + quotient((Number(0) - (address + begin * p->item)) & (kLine - 1), p->item);
    const Condition aligned = ((address + first * p->item) & (kLine - 1)) == 0;
    all = all ? *all && aligned : aligned;
  }
  return all ? choose(*all, least(first, end), end) : begin;
}

void walk(const Form& form, const Number& begin, const Number& end, const std::optional<Number>& aligned, Carry& carry,
          const Take& take) {
  if (!aligned) {
    const Number rest = walk_registers(form, begin, end, false, carry, take);
    return walk_masked(form, rest, end, carry, take);
  }
  carry.push_back({"i64", begin.name()});
  for_each(0, 2, 1, carry, [&](const Number& time) {  // so that what is masked stands once
    const Number to = choose(time == 0, *aligned, end), from(carry.back().name);
    carry.pop_back();
    walk_masked(form, from, to, carry, take);
    const Number rest = walk_registers(form, to, end, true, carry, take);
    carry.push_back({"i64", rest.name()});
  });
  carry.pop_back();
}

}  // namespace kfusion::cpu::ir
