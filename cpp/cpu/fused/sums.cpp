#include "cpu/fused/sums.hpp"

#include "kfusion/lower/schedule.hpp"

namespace kfusion::cpu {

Sums replace_sums(Kernel& k) {
  Sums sums{{}, k.loads.size(), k.parts()};
  const auto push = [&k](Step s) {
    k.steps.push_back(std::move(s));
    return static_cast<int>(k.steps.size()) - 1;
  };
  for (std::size_t i = 0; i < k.stores.size(); ++i) {
    Store& store = k.stores[i];
    if (store.parts == 0) continue;
    sums.stores.push_back(i);
    const DType dtype = store.to.dtype, from = k.steps[at(store.step)].dtype;
    Step sum;
    sum.dtype = sum.from = dtype, sum.index = static_cast<int>(k.loads.size()), sum.node = store.to.node;
    k.loads.push_back(store.to);
    Step cast;
    cast.kind = StepKind::kCast, cast.op = Op::cast, cast.dtype = dtype, cast.from = from;
    cast.arguments = {store.step};
    const int element = from == dtype ? store.step : push(std::move(cast));
    Step add;
    add.kind = StepKind::kMap, add.op = Op::add, add.dtype = add.from = dtype;
    add.arguments = {push(std::move(sum)), element};
    store.step = push(std::move(add));
    store.parts = 0;
  }
  k.kind = Pattern::kRows;
  set_schedule(k);
  return sums;
}

}  // namespace kfusion::cpu
