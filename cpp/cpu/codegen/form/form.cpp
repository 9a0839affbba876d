#include "cpu/codegen/form/form.hpp"

#include <algorithm>

#include "cpu/codegen/form/column_finds.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/form/side_by_side.hpp"
#include "cpu/codegen/math/ops.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {
namespace {

bool all_zero(Extents::const_iterator first, Extents::const_iterator last) {
  return std::all_of(first, last, [](std::int64_t s) { return s == 0; });
}

bool is_wide(DType t) { return t == DType::kFloat64 || t == DType::kInt64; }

/// Lanes that fill a register of the widest type that elements have.
int lanes_of(const Kernel& k, const TargetFacts& target) {
  const std::vector<bool> searched = goes_across(k) ? steps_of_searches(k) : std::vector<bool>(k.steps.size(), false);
  const bool wide = std::ranges::any_of(k.steps, [&](const Step& s) {
    if (searched[static_cast<std::size_t>(&s - k.steps.data())]) return false;
    return s.kind != StepKind::kConstant && s.kind != StepKind::kReduce && s.level == Level::kElement &&
           is_wide(s.dtype);
  });
  return target.vector_bytes / (wide ? 8 : 4);
}

/// Float64's squares are taken about the mean itself.
bool takes_moments(const Kernel& k) {
  const auto is_float32 = [&](const Pair& p) {
    const auto of = [&](int s) { return compute_dtype(k.step(s).from); };
    return p.kind == Pair::Kind::kCentred && of(p.first) == DType::kFloat32 && of(p.second) == DType::kFloat32;
  };
  const auto has_another = [&](const Pair& p) {
    return std::ranges::count(k.pairs, p.first, &Pair::first) + std::ranges::count(k.pairs, p.second, &Pair::second) >
           2;
  };
  return k.kind != Pattern::kPointwise && !k.pairs.empty() && std::ranges::all_of(k.pairs, is_float32) &&
         std::ranges::none_of(k.pairs, has_another);
}

/// Whether each second of a pair needs nothing else that its sweep finds than firsts.
bool seconds_need_firsts(const Kernel& k) {
  return std::ranges::all_of(k.pairs, [&](const Pair& p) {
    std::vector<int> needed = k.step(p.second).arguments;
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const int s = needed[i];
      const bool is_first = std::ranges::find(k.pairs, s, &Pair::first) != k.pairs.end();
      const Step& step = k.step(s);
      if (step.level == Level::kElement)
        needed.insert(needed.end(), step.arguments.begin(), step.arguments.end());
      else if (!is_first && k.paired.ready[at(s)] >= k.paired.ready[at(p.second)])
        return false;
    }
    return true;
  });
}

bool goes_in_pieces(const Kernel& k) {
  if (k.kind == Pattern::kPointwise || k.parts() > 0) return false;
  return k.cols() > kLongestRow || (k.rows() < kFewRows && k.cols() > kPiece);
}

}  // namespace

Form::Form(const Kernel& k, const TargetFacts& t, bool past_caches) : kernel(k), target(t) {
  streams = past_caches, lanes = lanes_of(k, t), across = goes_across(k);
  extents_ = ordered(k.kept, k.reduced);
  if (extents_.empty()) extents_ = {1};
  axes = static_cast<int>(extents_.size());
  const auto kept = static_cast<int>(k.kept.size());
  joins_rows = k.kind == Pattern::kPointwise && kept > 1 && k.kept.back() < kShortestRow;
  row_axes = joins_rows                      ? axes - 2
             : k.kind == Pattern::kPointwise ? axes - 1
                                             : std::min(across ? kept - 1 : kept, axes - 1);
  constants_ = axes;
  registers = registers_at_once(k, t);
  in_tiles = across && goes_in_tiles(k);
  if (across && !in_tiles) lay_side_by_side();
  int array = 0;
  for (const Operand& o : k.loads) loads.push_back(layout_of(o, static_cast<int>(item_bytes(o.dtype)), array++, false));
  for (const Operand& o : k.iotas) iotas.push_back(layout_of(o, 1, -1, false));
  for (const Table& o : k.tables) {
    tables.push_back(layout_of(o.from, static_cast<int>(item_bytes(o.from.dtype)), array++, false));
    tables.back().is_table = true;
  }
  array = 0;
  for (const Store& s : k.stores) {
    stores.push_back(layout_of(s.to, static_cast<int>(item_bytes(s.to.dtype)), array++, true));
    stores.back().summed = s.parts > 0;
  }
  if (across)  // no tables: their elements are taken one by one, from where they lie
    for (auto* layouts : {&loads, &stores})
      for (Layout& p : *layouts) transpose(p);
  positions_ = constants_;
  constants_ += 2 * static_cast<int>(tables.size()) + 1;
  in_pieces = !across && goes_in_pieces(k);
  if (across && !in_tiles && cols() < std::int64_t{lanes} * registers) registers = 1, chains = kChains;
  fetches = is_from_memory(k) && !(across && (in_tiles || chains > 1));
  row_by_row = across && fetches && goes_row_by_row(cols(), std::int64_t{lanes} * registers);
  has_moments = !across && takes_moments(k);
  takes_pairs_ = in_pieces && !has_moments && k.cols() > kLongestRow && seconds_need_firsts(k);
  fetches_near = !across && fetches && (schedule().sweeps == 1 || has_room_for_next(row_bytes()));
  pages_in_turn = !across && fetches && run_axes() == 0 && fetches_pages_in_turn() &&
                  std::ranges::all_of(loads, [this](const Layout& p) { return follows_rows(p); });
  for (const Step& s : k.steps) reach_.push_back(reach_of(s)), along_.push_back(is_along(s));
}

/// What a row reads that no other does.
std::int64_t Form::row_bytes() const {
  std::int64_t bytes = 0;
  for (const Layout& p : loads)
    if (p.by_rows && p.reach == Reach::kDense) bytes += cols() * p.item;
  return bytes;
}

/// Whether a row begins where the one before it ends, or is so long that few pages are fetched for nothing.
bool Form::follows_rows(const Layout& p) const {
  if (row_axes == 0 || !p.by_rows || p.reach != Reach::kDense) return true;
  return strides(p)[static_cast<std::size_t>(row_axes - 1)] == cols() * p.item || cols() * p.item >= 4 * kBytesInTurn;
}

Reach Form::reach_of(const Step& s) const {
  const auto index = static_cast<std::size_t>(s.index);
  if (s.kind == StepKind::kConstant) return Reach::kOnce;
  if (s.kind == StepKind::kLoad) return loads[index].reach;
  if (s.kind == StepKind::kIota) return iotas[index].reach;
  if (s.kind == StepKind::kReduce) return across ? Reach::kDense : Reach::kOfRow;
  Reach most = Reach::kOnce;
  if (s.kind == StepKind::kTake) most = tables[index].reach;
  for (const int a : s.arguments) most = std::max(most, reach(a));
  return s.kind == StepKind::kTake && reach(s.arguments[0]) > Reach::kOfRun ? Reach::kStrided : most;
}

bool Form::is_along(const Step& s) const {
  const auto index = static_cast<std::size_t>(s.index);
  if (s.kind == StepKind::kReduce) return false;
  if (s.kind == StepKind::kLoad) return loads[index].by_runs;
  if (s.kind == StepKind::kIota) return iotas[index].by_runs;
  if (s.kind == StepKind::kTake && tables[index].by_runs) return true;
  return std::ranges::any_of(s.arguments, [this](int a) { return along(a); });
}

/// Rows behind the last whole turn of `together` are some columns of one more row.
void Form::lay_side_by_side() {
  together = rows_side_by_side(kernel, lanes, registers);
  extents_.back() *= together;
  if (together > 1) extents_[extents_.size() - 2] /= together;
}

/// Numbers of axes in the order of loops.
Extents Form::ordered(const Extents& kept, const Extents& reduced) const {
  Extents all = kept;
  all.insert(across ? all.end() - 1 : all.end(), reduced.begin(), reduced.end());
  return all;
}

Layout Form::layout_of(const Operand& o, int item, int array, bool stored) {
  Layout p{&o, item, array, stored};
  p.number = operands++;
  p.first_integer = constants_;
  constants_ += 1 + axes;
  const Extents s = strides(p);
  p.by_rows = !all_zero(s.begin(), s.begin() + row_axes);
  p.by_runs = !all_zero(s.begin() + row_axes, s.end() - 1);
  p.reach = s.back() == item && !p.is_iota() ? Reach::kDense
            : s.back() != 0                  ? Reach::kStrided
            : p.by_runs                      ? Reach::kOfRun
            : p.by_rows                      ? Reach::kOfRow
                                             : Reach::kOnce;
  if (joins_rows) join(p, s);
  return p;
}

void Form::join(Layout& p, const Extents& strides) const {
  const std::int64_t in_row = strides.back(), to_next = strides[strides.size() - 2];
  p.by_runs = false;
  p.copied = to_next != in_row * extents_.back();
  p.along = in_row == 0 ? Reach::kOfRow : p.reach;
  p.repeats = to_next == 0 && !p.stored;
  if (p.copied)
    p.reach = Reach::kDense;
  else if (in_row == 0)
    p.reach = p.by_rows ? Reach::kOfRow : Reach::kOnce;
}

std::int64_t Form::piece() const { return joins_rows ? kPiece / extents_.back() * extents_.back() : kPiece; }

int Form::registers_of_row() const { return static_cast<int>(divide_up(extents_.back(), std::int64_t{lanes})); }

/// They fill whole lines of the cache.
std::int64_t Form::rows_of_block() const { return 64 * std::max<std::int64_t>(1, 8 / extents_.back()); }

std::int64_t Form::copied_bytes() const {
  if (!joins_rows) return 0;
  std::int64_t copied = 0;
  for (const auto* layouts : {&loads, &iotas, &tables, &stores})
    copied += std::ranges::count(*layouts, true, &Layout::copied);
  return copied * copy_pitch(rows_of_block() * extents_.back());
}

/// Rows of too few elements for a square are taken so only where they lie one after the other.
void Form::transpose(Layout& p) const {
  const Extents s = strides(p);
  const std::int64_t count = kernel.cols(), pitch = s.back();
  if (kernel.kind != Pattern::kRows || kernel.reduced.size() != 1 || p.is_iota() || p.reach != Reach::kStrided) return;
  if (s[s.size() - 2] != p.item) return;
  if (count <= kFewElements && pitch == count * p.item)
    p.transposed = true, p.row_elements = static_cast<int>(count);
  else
    p.transposed = count >= side_of_squares(p.item, lanes) && pitch != 0;
  if (p.transposed) p.reach = Reach::kDense;
}

/// A store of one element lies as a row of one.
Extents Form::strides(const Layout& p) const {
  Extents s = ordered(p.operand->kept, p.operand->reduced);
  s.resize(static_cast<std::size_t>(axes), p.is_iota() ? 0 : 1);
  if (together > 1) s[s.size() - 2] *= together;
  for (std::int64_t& stride : s) stride *= p.item;
  return s;
}

std::vector<std::int64_t> Form::integers() const {
  std::vector<std::int64_t> all(extents_.begin(), extents_.end());
  for (const auto* layouts : {&loads, &iotas, &tables, &stores})
    for (const Layout& p : *layouts) {
      all.push_back(p.operand->offset * p.item);
      for (const std::int64_t s : strides(p)) all.push_back(s);
    }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    all.push_back(kernel.tables[t].positions.extent);
    all.push_back(kernel.tables[t].stride * tables[t].item);
  }
  all.push_back(rows_of_block());
  for (const Constant& c : kernel.constants) all.push_back(c.integer);
  return all;
}

std::int64_t Form::elements(const Layout& p) const {
  std::int64_t n = 1;
  const auto count = [&n](const Extents& strides, const Extents& extents) {
    for (std::size_t axis = 0; axis < strides.size(); ++axis) n *= strides[axis] == 0 ? 1 : extents[axis];
  };
  count(p.operand->kept, kernel.kept), count(p.operand->reduced, kernel.reduced);
  return n;
}

std::int64_t Form::transposed_operands() const {
  return std::ranges::count(loads, true, &Layout::transposed) + std::ranges::count(stores, true, &Layout::transposed);
}

std::int64_t Form::rows() const {
  std::int64_t n = 1;
  for (int a = 0; a < row_axes; ++a) n *= extents_[static_cast<std::size_t>(a)];
  return n;
}

}  // namespace kfusion::cpu::ir
