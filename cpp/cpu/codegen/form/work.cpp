#include "cpu/codegen/form/work.hpp"

#include <algorithm>
#include <cstddef>

#include "cpu/job.hpp"
#include "kfusion/plan/prices/op_cost.hpp"

namespace kfusion::cpu::ir {
namespace {

/// Those of functions that are not simple, at a core's peak. A power by a constant is mostly a few products.
double costly_flops(const Kernel& k) {
  Device device;
  device.is_cpu = true;
  double flops = 0;
  for (const Step& s : k.steps) {
    if (s.kind != StepKind::kMap || info(s.op).cost == OpCost::kSimple) continue;
    const auto is_constant = [&](int a) { return k.steps[static_cast<std::size_t>(a)].kind == StepKind::kConstant; };
    if (s.op == Op::power && is_constant(s.arguments.back())) continue;
    const auto times = static_cast<double>(s.level == Level::kRow ? k.rows() : k.rows() * k.cols());
    flops += info(s.op).flops * work_of_flop(s.op, s.from, device) * times;
  }
  return flops;
}

}  // namespace

std::int64_t work_of(const Kernel& k) {
  constexpr std::int64_t kStepsPerPass = 16;  // that take about as long as memory does
  const auto steps = std::ssize(k.steps) + std::ssize(k.stores);
  return k.bytes() + std::max(k.bytes(), 4 * k.rows() * k.cols()) * steps / kStepsPerPass +
         bytes_for_flops(costly_flops(k));
}

}  // namespace kfusion::cpu::ir
