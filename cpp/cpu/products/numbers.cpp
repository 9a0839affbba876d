#include "cpu/products/numbers.hpp"

#include <algorithm>
#include <span>

#include "kfusion/lower/schedule.hpp"
#include "kfusion/lower/visible.hpp"
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

/// Makes int64 of positions int32, of which a vector holds twice as many: all of them, or none.
void narrow_positions(Kernel& k) {
  const PositionSteps positions(k);
  const auto is_narrow = [&](int i) { return positions.has(i) && k.step(i).dtype == DType::kInt64; };
  if (std::ranges::any_of(k.stores, [&](const Store& s) { return is_narrow(s.step); })) return;
  std::vector<int> narrow, readers;
  for (int i = 0; i < std::ssize(k.steps); ++i) {
    const Step& s = k.step(i);
    if (is_narrow(i)) narrow.push_back(i);
    if (std::ranges::none_of(s.arguments, is_narrow)) continue;
    if (s.kind != StepKind::kCast && !(std::ranges::all_of(s.arguments, is_narrow) && positions.compares(i))) {
      if (!is_narrow(i)) return;
      const auto values = std::span(s.arguments).subspan(s.op == Op::where ? 1 : 0);
      if (!std::ranges::all_of(values, is_narrow)) return;
    }
    readers.push_back(i);
  }
  for (const int i : narrow) {
    Step& s = k.steps[at(i)];
    s.dtype = DType::kInt32;
    if (s.kind != StepKind::kCast) s.from = DType::kInt32;
    if (s.kind == StepKind::kIota) k.iotas[at(s.index)].dtype = DType::kInt32;
    if (s.kind == StepKind::kConstant) k.constants[at(s.index)].dtype = DType::kInt32;
  }
  for (const int i : readers) k.steps[at(i)].from = DType::kInt32;
}

}  // namespace

std::vector<std::vector<std::byte>> numbers_of(Contraction& c) {
  std::vector<std::vector<std::byte>> made;
  Kernel& k = c.epilogue;
  narrow_positions(k);
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
