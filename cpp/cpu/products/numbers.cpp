#include "cpu/products/numbers.hpp"

#include "kfusion/lower/schedule.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/reference/interpreted_kernel.hpp"

namespace kfusion::cpu {
namespace {

/// The numbers of an iota, as an array of C order along the axes along which it varies; `o` becomes where they lie.
std::vector<std::byte> numbers(Operand& o, const Contraction& c) {
  Extents extents = c.batch_axes;
  std::vector<std::int64_t*> strides;
  const auto add = [&](std::int64_t extent, std::int64_t& stride) {
    extents.push_back(extent), strides.push_back(&stride);
  };
  for (std::size_t i = 0; i < c.batch_axes.size(); ++i) strides.push_back(&o.kept[i]);
  const std::size_t next = c.batch_axes.size();
  add(c.rows, c.reduces == Reduces::kRows ? o.reduced[0] : o.kept[next]);
  add(c.cols, c.reduces == Reduces::kCols ? o.reduced[0] : o.kept.back());
  Kernel k;
  Operand from = o, to;
  from.kept = from.reduced = {}, to.dtype = o.dtype;
  std::int64_t count = 1;
  for (std::size_t i = extents.size(); i-- > 0;) {
    if (*strides[i] == 0) continue;
    k.kept.insert(k.kept.begin(), extents[i]), from.kept.insert(from.kept.begin(), *strides[i]);
    to.kept.insert(to.kept.begin(), count);
    *strides[i] = count;
    count *= extents[i];
  }
  Step step;
  step.kind = StepKind::kIota, step.op = Op::iota, step.dtype = step.from = o.dtype, step.index = 0;
  k.name = "numbers", k.iotas = {from}, k.steps = {step}, k.stores = {{0, to}};
  set_schedule(k);
  std::vector<std::byte> bytes(at(count) * item_bytes(o.dtype));
  std::byte* const store = bytes.data();
  reference::InterpretedKernel(k).run(nullptr, &store, nullptr);
  o.offset = 0;
  o.node = -1;
  return bytes;
}

}  // namespace

std::vector<std::vector<std::byte>> numbers_of(Contraction& c) {
  std::vector<std::vector<std::byte>> made;
  Kernel& k = c.epilogue;
  const auto first = static_cast<int>(k.loads.size());
  for (Operand& o : k.iotas) {
    made.push_back(numbers(o, c));
    k.loads.push_back(o);
  }
  k.iotas.clear();
  for (Step& s : k.steps)
    if (s.kind == StepKind::kIota) s.kind = StepKind::kLoad, s.index += first;
  return made;
}

}  // namespace kfusion::cpu
