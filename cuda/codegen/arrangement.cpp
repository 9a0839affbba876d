#include "codegen/arrangement.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "kfusion/lower/schedule.hpp"

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

/// Whether the operand's vectors are aligned wherever those of `frame` are.
bool shares_frame(const Arrangement& a, const Operand& o, const Operand& frame, bool aligned) {
  if (&o == &frame) return true;
  const Extents &own = a.outer_of(o), &other = a.outer_of(frame);
  bool same = aligned && (o.offset - frame.offset) % a.width == 0;
  for (std::size_t d = 0; d < own.size(); ++d) same = same && (own[d] - other[d]) % a.width == 0;
  return same;
}

Addressing framed_addressing(const Arrangement& a, const Operand& o, const Operand& frame, bool aligned) {
  if (all_zero(a.inner_of(o))) return Addressing::kSplat;
  if (a.inner_of(o).back() != 1) return Addressing::kElements;
  return shares_frame(a, o, frame, aligned) ? Addressing::kDense : Addressing::kShifted;
}

bool lies_across(const Arrangement& a, const Operand& o) {
  return a.outer_of(o).back() == 1 && std::abs(a.inner_of(o).back()) > 1;
}

/// Whole vectors of it lie along the last axis of the loop, and make whole vectors along the lanes.
bool is_crossed(const Arrangement& a, const Operand& o, int width, bool aligned) {
  const Extents &inner = a.inner_of(o), &outer = a.outer_of(o);
  const auto whole = [&](std::int64_t n) { return n % width == 0; };
  return a.traversal == Traversal::kColumns && outer.back() == 1 && inner.back() != 0 && aligned &&
         whole(a.outer.back()) && whole(a.inner.back()) && whole(o.offset) && std::ranges::all_of(inner, whole) &&
         std::all_of(outer.begin(), outer.end() - 1, whole);
}

Addressing addressing_of(const Arrangement& a, const Operand& o, int width, bool aligned) {
  const Extents& strides = a.inner_of(o);
  const bool divided = a.inner.back() % width == 0;  // no vector crosses the end of the last axis
  if (all_zero(strides)) return Addressing::kSplat;
  const bool dense = in_c_order(a.inner, strides);
  if (width == 1) return dense ? Addressing::kDense : Addressing::kVector;
  if (is_crossed(a, o, width, aligned)) return Addressing::kCrossed;
  const auto whole = [&](std::int64_t n) { return n % width == 0; };
  const bool lines_aligned = aligned && whole(o.offset) && std::ranges::all_of(a.outer_of(o), whole);
  if (dense && lines_aligned) return Addressing::kDense;
  if (!divided) return Addressing::kElements;
  if (strides.back() == 0) return Addressing::kSplat;
  const bool starts_aligned = lines_aligned && std::all_of(strides.begin(), strides.end() - 1, whole);
  return strides.back() == 1 && starts_aligned ? Addressing::kVector : Addressing::kElements;
}

template <class Do>
void for_each_operand(const Kernel& k, const Do& with) {
  for (const Operand& o : k.loads) with(o);
  for (const Store& s : k.stores) with(s.to);
}

/// Whether an operand is not broadcast: as large as the matrix, but for what is reduced.
bool is_large(const Arrangement& a, const Operand& o) {
  const auto broadcast = [](const Extents& strides) { return std::ranges::count(strides, 0) > 0; };
  return !broadcast(a.inner_of(o)) && (!broadcast(a.outer_of(o)) || a.traversal == Traversal::kPointwise);
}

/// Elements in 16 bytes of the widest operand that varies along the lanes. Sums of columns count where elements are in
/// registers, too: layer norm's gradient of 8192 x 4096 bfloat16 takes 101 us with vectors of 4, 112 with 8 (H200).
int widest_vector(const Kernel& k, const Arrangement& a, bool sums) {
  const auto lanes = [&](const auto& varies) {
    std::int64_t widest = 0;
    const auto add = [&](const Operand& o) {
      if (varies(a.inner_of(o))) widest = std::max(widest, static_cast<std::int64_t>(item_bytes(o.dtype)));
    };
    for (const Operand& o : k.loads) add(o);
    for (const Store& s : k.stores)
      if (sums || s.parts == 0) add(s.to);
    return widest == 0 ? 1 : static_cast<int>(kVectorBytes / widest);
  };
  const int along_last = lanes([](const Extents& strides) { return !strides.empty() && strides.back() != 0; });
  if (along_last > 1 && a.inner.back() % along_last == 0) return along_last;  // others have one element for all lanes
  return lanes([](const Extents& strides) { return !all_zero(strides); });
}

/// What vectors move of what is large, and what goes element by element: bytes of one element.
struct Moved {
  std::int64_t in_vectors = 0, one_by_one = 0;
};
Moved moved(const Kernel& k, const Arrangement& a) {
  Moved m;
  const auto add = [&](const Operand& o, Addressing addressing) {
    const auto bytes = static_cast<std::int64_t>(item_bytes(o.dtype));
    if (is_large(a, o)) (addressing == Addressing::kElements ? m.one_by_one : m.in_vectors) += bytes;
  };
  for (std::size_t i = 0; i < k.loads.size(); ++i) add(k.loads[i], a.loads[i]);
  for (std::size_t i = 0; i < k.stores.size(); ++i) add(k.stores[i].to, a.stores[i]);
  return m;
}

void address_all(const Kernel& k, Arrangement& a, bool aligned) {
  a.loads.clear(), a.stores.clear();
  for (const Operand& o : k.loads) a.loads.push_back(addressing_of(a, o, a.width, aligned));
  for (const Store& s : k.stores) a.stores.push_back(addressing_of(a, s.to, a.width, aligned));
}

/// What is shifted is read in aligned halves of vectors that must be the row's own; one that lies as rows do begins
/// with such a half.
void leave_margins(const Kernel& k, Arrangement& a, bool aligned) {
  const auto whole = [&](std::int64_t n) { return n % a.width == 0; };
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    if (a.loads[i] != Addressing::kShifted) continue;
    a.behind = a.width / 2 - 1;
    if (!aligned || !whole(k.loads[i].offset) || !std::ranges::all_of(a.outer_of(k.loads[i]), whole))
      a.before = a.behind;
  }
}

/// The arrangement in a frame: of the first large result that is contiguous along the row, else of such an operand.
Arrangement framed(const Kernel& k, Arrangement a, bool aligned) {
  const auto leads = [&](const Operand& o) { return a.inner_of(o).back() == 1 && is_large(a, o); };
  const auto store = std::ranges::find_if(k.stores, [&](const Store& s) { return leads(s.to); });
  const auto load = std::ranges::find_if(k.loads, leads);
  if (store != k.stores.end())
    a.frame_store = static_cast<int>(store - k.stores.begin());
  else if (load != k.loads.end())
    a.frame_load = static_cast<int>(load - k.loads.begin());
  else
    return a;
  const Operand& frame = a.frame_store >= 0 ? store->to : *load;
  a.loads.clear(), a.stores.clear();
  for (const Operand& o : k.loads) a.loads.push_back(framed_addressing(a, o, frame, aligned));
  for (const Store& s : k.stores) {
    const Addressing addressing = framed_addressing(a, s.to, frame, aligned);
    a.stores.push_back(addressing == Addressing::kShifted ? Addressing::kElements : addressing);
  }
  leave_margins(k, a, aligned);
  return a;
}

/// Vectors as the row counts them, or in a frame where that moves more in vectors; single elements where neither moves
/// more than half of what is large.
void choose_vectors(const Kernel& k, Arrangement& a, bool aligned, bool sums) {
  a.width = widest_vector(k, a, sums);
  address_all(k, a, aligned);
  const bool may_frame = a.traversal == Traversal::kRows && a.inner.size() == 1 && k.parts() == 0;
  if (a.width > 1 && may_frame && moved(k, a).one_by_one > 0) {
    Arrangement other = framed(k, a, aligned);
    if (other.framed() && moved(k, other).one_by_one < moved(k, a).one_by_one) a = std::move(other);
  }
  const Moved m = moved(k, a);
  if (m.in_vectors > m.one_by_one) return;
  a.width = 1, a.frame_load = a.frame_store = -1, a.before = a.behind = 0;
  address_all(k, a, aligned);
}

/// Rows up to so many elements are staged where they are no multiple of 16 bytes, or no longer than three times that.
constexpr std::int64_t kSpanElements = 100, kSpanBytes = 3 * kVectorBytes;

/// Most bytes that the fewest rows of a warp may take; these are whole slots of each staged array. A block has at least
/// one warp, so more would exceed shared memory, or leave none for other blocks.
constexpr std::int64_t kMostSpanBytes = 48 << 10;

/// Whether all that is large lies row behind row, from a multiple of 16 bytes on, and rows are short.
bool are_spans(const Kernel& k, const Arrangement& a, bool aligned) {
  if (!aligned || a.traversal != Traversal::kRows || a.inner.size() != 1 || a.outer.size() != 1) return false;
  const std::int64_t cols = a.inner[0];
  bool dense = true;
  std::int64_t widest = 0, least = kVectorBytes, bytes = 0;
  for_each_operand(k, [&](const Operand& o) {
    if (!is_large(a, o)) return;
    const auto item = static_cast<std::int64_t>(item_bytes(o.dtype));
    dense &= a.inner_of(o)[0] == 1 && a.outer_of(o)[0] == cols && o.offset * item % kVectorBytes == 0;
    widest = std::max(widest, item), least = std::min(least, item), bytes += item;
  });
  constexpr std::int64_t kWarp = 32;
  const auto lanes = std::bit_ceil(static_cast<std::uint64_t>((cols + kLaneElements - 1) / kLaneElements));
  const std::int64_t rows = std::max(kWarp / static_cast<std::int64_t>(lanes), kVectorBytes / least);
  if (rows * cols * bytes > kMostSpanBytes) return false;
  return dense && widest > 0 && cols <= kSpanElements && (a.framed() || cols * widest <= kSpanBytes);
}

/// So many rows that they are whole 16-byte slots of all that is large; 0: too much for a lane to have at once.
int rows_of_lane(const Kernel& k, const Arrangement& a) {
  constexpr std::int64_t kMostSlots = 20, kMostElements = 64;  // more would be more code than is kept near
  const std::int64_t cols = a.inner[0];
  std::int64_t rows = 1, bytes_of_column = 0;
  for_each_operand(k, [&](const Operand& o) {
    if (!is_large(a, o)) return;
    const auto item = static_cast<std::int64_t>(item_bytes(o.dtype));
    rows = std::max(rows, kVectorBytes / std::gcd(kVectorBytes, cols * item));
    bytes_of_column += item;
  });
  const bool fits = rows * cols <= kMostElements && rows * cols * bytes_of_column <= 2 * kMostSlots * kVectorBytes;
  return fits ? static_cast<int>(rows) : 0;
}

/// What rows share, as a lane loads a whole row of it.
Addressing run_addressing(const Arrangement& a, const Operand& o, bool aligned) {
  const auto slots = [&](std::int64_t n) {
    return n * static_cast<std::int64_t>(item_bytes(o.dtype)) % kVectorBytes == 0;
  };
  if (all_zero(a.inner_of(o))) return Addressing::kSplat;
  const bool run = aligned && a.inner_of(o)[0] == 1 && slots(o.offset) && std::ranges::all_of(a.outer_of(o), slots);
  return run ? Addressing::kRun : Addressing::kElements;
}

/// Rows that a lane has alone are vectors.
void stage_spans(const Kernel& k, Arrangement& a, bool aligned) {
  a.spans = true, a.width = 1, a.frame_load = a.frame_store = -1, a.before = a.behind = 0;
  a.packed = rows_of_lane(k, a);
  const bool alone = a.packed > 0 || a.inner[0] <= kLaneElements;
  if (alone) a.width = static_cast<int>(a.inner[0]);
  address_all(k, a, aligned);
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    if (alone) a.loads[i] = run_addressing(a, k.loads[i], aligned);
    if (is_large(a, k.loads[i])) a.loads[i] = Addressing::kStaged;
  }
  for (std::size_t i = 0; i < k.stores.size(); ++i)
    if (is_large(a, k.stores[i].to)) a.stores[i] = Addressing::kStaged;
}

/// Columns, unless what is read most is contiguous along the last reduced axis.
Traversal traversal_of(const Kernel& k) {
  if (k.kind == Pattern::kPointwise) return Traversal::kPointwise;
  if (k.kept.empty() || k.kind != Pattern::kColumns) return Traversal::kRows;
  if (std::ranges::count(k.steps, StepKind::kReduce, &Step::kind) == 0) return Traversal::kColumns;  // of with_axes()
  std::int64_t along_rows = 0, along_columns = 0;
  for_each_operand(k, [&](const Operand& o) {
    const auto bytes = static_cast<std::int64_t>(item_bytes(o.dtype));
    if (o.reduced.back() == 1 && !all_zero(o.kept)) along_rows += bytes;
    if (o.kept.back() == 1 && !all_zero(o.reduced)) along_columns += bytes;
  });
  return along_rows > along_columns ? Traversal::kRows : Traversal::kColumns;
}

/// Vectors of a table begin where those of rows do, whatever its position, and have no more bytes.
Addressing table_addressing(const Arrangement& a, const Table& t, bool aligned) {
  if (a.width * static_cast<std::int64_t>(item_bytes(t.from.dtype)) > kVectorBytes) return Addressing::kElements;
  if (a.width == 1 || a.framed() || a.spans || a.traversal == Traversal::kColumns || t.stride % a.width != 0)
    return Addressing::kElements;
  const Addressing addressing = addressing_of(a, t.from, a.width, aligned);
  return addressing == Addressing::kDense || addressing == Addressing::kVector ? addressing : Addressing::kElements;
}

Arrangement arrange_in(Traversal traversal, const Kernel& k, bool aligned, bool sums = true) {
  Arrangement a;
  a.traversal = traversal;
  a.inner = a.traversal == Traversal::kRows ? k.reduced : k.kept;
  a.outer = a.traversal == Traversal::kRows ? k.kept : a.traversal == Traversal::kColumns ? k.reduced : Extents{};
  for_each_operand(k, [&](const Operand& o) { a.across |= traversal == Traversal::kColumns && lies_across(a, o); });
  choose_vectors(k, a, aligned, sums);
  if (k.parts() == 0 && are_spans(k, a, aligned)) stage_spans(k, a, aligned);
  const bool may_end_inside =
      a.inner.size() == 1 && a.traversal == Traversal::kPointwise;  // must not depend on a batch size
  a.whole = a.width == 1 || a.framed() || (!may_end_inside && a.inner.back() % a.width == 0);
  a.wide = product(a.inner) >= kMaxIndex;
  a.wide_outer = product(a.outer) >= kMaxIndex;
  for_each_operand(k, [&](const Operand& o) { a.wide |= span(a.inner, a.inner_of(o)) >= kMaxIndex; });
  for (const Operand& o : k.iotas) a.wide |= span(a.inner, a.inner_of(o)) >= kMaxIndex;
  for (const Table& t : k.tables) a.wide |= span(a.inner, a.inner_of(t.from)) >= kMaxIndex;
  for (const Table& t : k.tables) a.tables.push_back(table_addressing(a, t, aligned));
  return a;
}

void add_axis(Kernel& k) {
  k.kept = {1};
  for (Operand& o : k.loads) o.kept = {1};
  for (Operand& o : k.iotas) o.kept = {1};
  for (Table& t : k.tables) t.from.kept = {1};
  for (Store& s : k.stores) s.to.kept = {1};
}

/// The axis along which most bytes of a pointwise kernel are contiguous that are read across; -1: there is none.
int crossing_axis(const Kernel& k) {
  constexpr std::int64_t kLeast = 16;
  std::int64_t most = 0;
  int found = -1;
  for (int d = 0; d + 1 < static_cast<int>(k.kept.size()); ++d) {
    std::int64_t bytes = 0;
    for (const Operand& o : k.loads)
      if (o.kept[static_cast<std::size_t>(d)] == 1 && std::abs(o.kept.back()) > 1)
        bytes += static_cast<std::int64_t>(item_bytes(o.dtype));
    if (bytes <= most || k.kept[static_cast<std::size_t>(d)] < kLeast || k.kept.back() < kLeast) continue;
    most = bytes;
    found = d;
  }
  return found;
}

/// All axes but the last are looped over, `axis` innermost.
Kernel in_columns(Kernel k, int axis) {
  const auto split = [&](Extents& kept, Extents& reduced) {
    reduced = {kept.begin(), kept.end() - 1};
    std::rotate(reduced.begin() + axis, reduced.begin() + axis + 1, reduced.end());
    kept = {kept.back()};
  };
  k.kind = Pattern::kColumns;
  split(k.kept, k.reduced);
  for (Operand& o : k.loads) split(o.kept, o.reduced);
  for (Operand& o : k.iotas) split(o.kept, o.reduced);
  for (Table& t : k.tables) split(t.from.kept, t.from.reduced);
  for (Store& s : k.stores) split(s.to.kept, s.to.reduced);
  set_schedule(k);
  return k;
}

}  // namespace

Kernel with_axes(Kernel k) {
  if (k.kind != Pattern::kPointwise) return k;
  if (k.kept.empty()) add_axis(k);
  const int axis = crossing_axis(k);
  return axis < 0 ? k : in_columns(std::move(k), axis);
}

/// Columns also where rows would read or write something element by element that columns cross.
Arrangement arrange(const Kernel& k, bool aligned, bool sums) {
  const Traversal traversal = traversal_of(k);
  Arrangement a = arrange_in(traversal, k, aligned, sums);
  if (traversal != Traversal::kRows || k.kept.empty() || k.parts() > 0 || a.spans ||
      (a.width > 1 && moved(k, a).one_by_one == 0))
    return a;
  Arrangement columns = arrange_in(Traversal::kColumns, k, aligned);
  return columns.crossed() && moved(k, columns).one_by_one == 0 ? columns : a;
}

std::optional<Arrangement> in_planes(const Kernel& k, Arrangement a) {
  bool any = false;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    if (a.loads[i] != Addressing::kShifted) continue;
    const DType dtype = k.loads[i].dtype;
    if (!is_half(dtype) && dtype != DType::kFloat32) return {};
    if (!all_zero(a.outer_of(k.loads[i]))) return {};
    a.loads[i] = Addressing::kPlanes;
    any = true;
  }
  if (!any) return {};
  a.before = a.behind = 0;
  return a;
}

}  // namespace kfusion::codegen
