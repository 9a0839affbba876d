#include "codegen/arrangement.hpp"

#include <algorithm>
#include <cstdlib>

namespace kfusion::codegen {
namespace {

constexpr std::int64_t kVectorBytes = 16;
/// Indices that a tile may run beyond the end still have 31 bits.
constexpr std::int64_t kMaxIndex = (std::int64_t{1} << 31) - (std::int64_t{1} << 20);

bool all_zero(const Extents& strides) {
  return std::ranges::all_of(strides, [](std::int64_t s) { return s == 0; });
}

bool in_c_order(const Extents& extents, const Extents& strides) {
  std::int64_t expected = 1;
  for (std::size_t d = extents.size(); d-- > 0; expected *= extents[d])
    if (strides[d] != expected) return false;
  return true;
}

/// Elements between the first and the last that an operand reaches along some axes.
std::int64_t span(const Extents& extents, const Extents& strides) {
  std::int64_t elements = 0;
  for (std::size_t d = 0; d < extents.size(); ++d) elements += std::abs(strides[d]) * (extents[d] - 1);
  return elements;
}

Reach reach_of(const Arrangement& a, const Operand& o, int width, bool aligned) {
  const Extents& strides = a.inner_of(o);
  const bool divided = a.inner.back() % width == 0;  // no vector crosses the end of the last axis
  if (all_zero(strides)) return Reach::kSplat;
  const bool dense = in_c_order(a.inner, strides);
  if (width == 1) return dense ? Reach::kDense : Reach::kVector;
  const auto whole = [&](std::int64_t n) { return n % width == 0; };
  const bool lines_aligned = aligned && whole(o.offset) && std::ranges::all_of(a.outer_of(o), whole);
  if (dense && lines_aligned) return Reach::kDense;
  if (!divided) return Reach::kElements;
  if (strides.back() == 0) return Reach::kSplat;
  const bool starts_aligned = lines_aligned && std::all_of(strides.begin(), strides.end() - 1, whole);
  return strides.back() == 1 && starts_aligned ? Reach::kVector : Reach::kElements;
}

template <class Do>
void for_each_operand(const Kernel& k, const Do& with) {
  for (const Operand& o : k.loads) with(o);
  for (const Store& s : k.stores) with(s.to);
}

/// Not broadcast: as large as the matrix, but for what is reduced.
bool is_large(const Arrangement& a, const Operand& o) {
  const auto broadcast = [](const Extents& strides) { return std::ranges::count(strides, 0) > 0; };
  return !broadcast(a.inner_of(o)) && (!broadcast(a.outer_of(o)) || a.form == Form::kPointwise);
}

/// 16 bytes of the widest operand that varies along the lanes, where vectors move more than half of what is large.
int choose_width(const Kernel& k, const Arrangement& a, bool aligned) {
  std::int64_t widest = 0;
  for_each_operand(k, [&](const Operand& o) {
    if (!all_zero(a.inner_of(o))) widest = std::max(widest, static_cast<std::int64_t>(item_bytes(o.dtype)));
  });
  if (widest == 0) return 1;
  const int width = static_cast<int>(kVectorBytes / widest);
  std::int64_t in_vectors = 0, one_by_one = 0;
  for_each_operand(k, [&](const Operand& o) {
    const Reach reach = reach_of(a, o, width, aligned);
    const auto bytes = static_cast<std::int64_t>(item_bytes(o.dtype));
    if (is_large(a, o)) (reach == Reach::kElements ? one_by_one : in_vectors) += bytes;
  });
  return in_vectors > one_by_one ? width : 1;
}

/// Columns, unless what is read most is contiguous along the last reduced axis.
Form form_of(const Kernel& k) {
  if (k.kind == GroupKind::kPointwise || k.reduced.empty()) return Form::kPointwise;
  if (k.kept.empty() || k.kind != GroupKind::kColumns) return Form::kRows;
  std::int64_t along_rows = 0, along_columns = 0;
  for_each_operand(k, [&](const Operand& o) {
    const auto bytes = static_cast<std::int64_t>(item_bytes(o.dtype));
    if (o.reduced.back() == 1 && !all_zero(o.kept)) along_rows += bytes;
    if (o.kept.back() == 1 && !all_zero(o.reduced)) along_columns += bytes;
  });
  return along_rows > along_columns ? Form::kRows : Form::kColumns;
}

void add_axis(Kernel& k, Extents Operand::* axes, std::int64_t load_stride, std::int64_t store_stride) {
  for (Operand& o : k.loads) (o.*axes).push_back(load_stride);
  for (Operand& o : k.iotas) (o.*axes).push_back(load_stride);
  for (Store& s : k.stores) (s.to.*axes).push_back(store_stride);
}

}  // namespace

Kernel with_axes(Kernel k) {
  const bool reduces = std::ranges::any_of(k.steps, [](const Step& s) { return s.kind == StepKind::kReduce; });
  if (reduces && k.reduced.empty()) {
    k.reduced = {1};
    k.kind = k.kept.empty() ? GroupKind::kRows : GroupKind::kColumns;
    add_axis(k, &Operand::reduced, 1, 0);
  }
  if (!reduces && k.kept.empty()) {
    k.kept = {1};
    add_axis(k, &Operand::kept, 1, 1);
  }
  return k;
}

Arrangement arrange(const Kernel& k, bool aligned) {
  Arrangement a;
  a.form = form_of(k);
  a.inner = a.form == Form::kRows ? k.reduced : k.kept;
  a.outer = a.form == Form::kRows ? k.kept : a.form == Form::kColumns ? k.reduced : Extents{};
  a.width = choose_width(k, a, aligned);
  const bool may_end_inside = a.inner.size() == 1 && a.form == Form::kPointwise;  // must not depend on a batch size
  a.whole = a.width == 1 || (!may_end_inside && a.inner.back() % a.width == 0);
  a.wide = product(a.inner) >= kMaxIndex;
  a.wide_outer = product(a.outer) >= kMaxIndex;
  for_each_operand(k, [&](const Operand& o) { a.wide |= span(a.inner, a.inner_of(o)) >= kMaxIndex; });
  for (const Operand& o : k.iotas) a.wide |= span(a.inner, a.inner_of(o)) >= kMaxIndex;
  for (const Operand& o : k.loads) a.loads.push_back(reach_of(a, o, a.width, aligned));
  for (const Store& s : k.stores) a.stores.push_back(reach_of(a, s.to, a.width, aligned));
  return a;
}

}  // namespace kfusion::codegen
