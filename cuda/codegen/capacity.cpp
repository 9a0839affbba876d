#include "codegen/capacity.hpp"

#include <bit>
#include <map>

#include "kfusion/lower/schedule.hpp"

namespace kfusion::codegen {
namespace {

/// By load: whether several sweeps use it, or the first one does.
std::vector<bool> soon_or_again(const Kernel& k) {
  std::vector<bool> seen(k.loads.size()), found(k.loads.size());
  for (int sweep = 0; sweep < k.paired.sweeps; ++sweep)
    for (const int i : element_steps(k, sweep)) {
      if (k.step(i).kind != StepKind::kLoad) continue;
      const std::size_t load = at(k.step(i).index);
      found[load] = sweep == 0 || seen[load];
      seen[load] = true;
    }
  return found;
}

std::vector<bool> held_loads(const Kernel& k, const Arrangement& a) {
  const std::vector<bool> used = soon_or_again(k);
  std::vector<bool> held;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const Extents& outer = a.outer_of(k.loads[i]);
    const bool of_row = outer.empty() || std::ranges::any_of(outer, [](std::int64_t n) { return n != 0; });
    held.push_back(!a.per_row(k.loads[i]) && of_row && used[i]);
  }
  return held;
}

}  // namespace

Problem::Problem(const Kernel& kernel, const Arrangement& arrangement, const Target& device)
    : k(kernel), a(arrangement), target(device), held(held_loads(kernel, arrangement)) {}

Division::Division(Extent grid, Extent block, std::optional<Geometry> members) : geometry(members) {
  const auto set = [](unsigned (&to)[3], const Extent& e) {
    to[0] = static_cast<unsigned>(e.x), to[1] = static_cast<unsigned>(e.y), to[2] = static_cast<unsigned>(e.z);
  };
  set(launch.grid, grid), set(launch.block, block);
}

std::int64_t shared_bytes_of(int resident, const Target& target) {
  constexpr std::int64_t kSystemBytes = 1 << 10;  // that each block takes besides
  return (target.shared_bytes + kSystemBytes) / resident - kSystemBytes;
}

int most_threads(const Target& target) {
  if (target.compute_major == 7 && target.compute_minor == 5) return 1024;
  const bool few = (target.compute_major == 8 && target.compute_minor > 0) || target.compute_major == 12;
  return few ? 1536 : 2048;
}

/// Clusters of more than 8 not all architectures have that have clusters.
int most_blocks(const Target& target) {
  if (!target.clusters) return 1;
  return target.compute_major == 9 || target.compute_major == 10 ? kLargestCluster : kMaxCluster;
}

std::int64_t vectors_of(const Arrangement& a) {
  if (a.framed()) return std::max<std::int64_t>((product(a.inner) - a.behind) / a.width, 1);
  return divide_up(product(a.inner), a.width);
}

std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const std::int64_t lanes = a.loads[i] == Addressing::kSplat ? 1 : a.width;
    if (chosen[i]) bytes += std::max<std::int64_t>(4, lanes * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)));
  }
  return std::max<std::int64_t>(bytes, 4);
}

std::int64_t sum_bytes(const Kernel& k, const Arrangement& a) {
  std::int64_t bytes = 0;
  for (const Store& s : k.stores)
    if (s.parts > 0) bytes += round_up(a.width * static_cast<std::int64_t>(item_bytes(s.to.dtype)), 8);
  return bytes;
}

std::int64_t row_bytes(const Problem& p) { return vectors_of(p.a) * bytes_of(p.k, p.a, p.held); }

std::vector<bool> element_loads(const Kernel& k, const Arrangement& a) {
  std::vector<bool> found;
  for (const Operand& o : k.loads) found.push_back(!a.per_row(o));
  return found;
}

bool fetches(const Problem& p) {
  return std::ranges::count(element_loads(p.k, p.a), true) > std::ranges::count(p.held, true);
}

bool is_bulk_copied(const Kernel& k, const Arrangement& a, std::size_t i) {
  return a.loads[i] == Addressing::kDense && a.whole &&
         a.width * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)) == kSlotBytes;
}

namespace {
/// Steps of which each lane has its own; the others are computed once for a vector.
std::int64_t lane_steps(const Kernel& k, const Arrangement& a) {
  std::vector<bool> own;
  for (const Step& s : k.steps) {
    bool is_own = s.kind == StepKind::kIota || s.kind == StepKind::kTake;
    if (s.kind == StepKind::kLoad) is_own = a.loads[at(s.index)] != Addressing::kSplat;
    for (const int argument : s.arguments) is_own = is_own || own[at(argument)];
    own.push_back(is_own);
  }
  return std::ranges::count(own, true);
}
}  // namespace

int vectors_in_flight(const Kernel& k, const Arrangement& a, int bytes, int most) {
  std::vector<bool> counted = element_loads(k, a);  // single values lie in a cache
  for (std::size_t i = 0; i < counted.size(); ++i) counted[i] = counted[i] && a.loads[i] != Addressing::kSplat;
  std::int64_t vectors = clamp(bytes / bytes_of(k, a, counted), 1, most);
  vectors = std::bit_floor(static_cast<std::uint64_t>(vectors));
  while (vectors > 1 && vectors * a.width * lane_steps(k, a) > 512) vectors /= 2;
  return static_cast<int>(vectors);
}

bool in_doubles(const Kernel& k) {
  return std::ranges::any_of(k.steps, [](const Step& s) { return s.dtype == DType::kFloat64; });
}

bool is_heavy(const Kernel& k) {
  constexpr std::int64_t kMostSteps = 24;
  const bool in_rows = k.kind != Pattern::kPointwise && k.kind != Pattern::kColumns;
  const auto is_once = [&](const Step& s) {
    return in_rows && s.level == Level::kRow && s.kind != StepKind::kReduce && s.kind != StepKind::kConstant;
  };
  return in_doubles(k) || std::ssize(k.steps) - std::ranges::count_if(k.steps, is_once) > kMostSteps;
}

Division divide_rows(const Problem& p, int threads, std::int64_t rows, std::int64_t shared_bytes) {
  const std::int64_t all = product(p.a.outer);
  Division d({divide_up(all, rows)}, {threads}, Geometry{.rows = all, .warps = 1, .splits = 1});
  d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return d;
}

std::int64_t plane_bytes(const Arrangement& a, const Traits& traits) {
  const std::int64_t count = traits.planes_twice ? 2 * a.width - 1 : a.width;
  return count * traits.plane_entries * a.planes() * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t partial_bound(const Kernel& k) { return 12 * std::ranges::count(k.steps, StepKind::kReduce, &Step::kind); }

std::int64_t column_bound(const Kernel& k) {
  // A mean with its second moment: two values and a count, which is as wide as they are.
  const auto third = [&](const Pair& p) {
    return p.kind == Pair::Kind::kCentred && k.step(p.first).from == DType::kFloat64;
  };
  return 8 * (std::ranges::count(k.steps, StepKind::kReduce, &Step::kind) + std::ranges::count_if(k.pairs, third));
}

std::int64_t exchange_room(std::int64_t partial_bytes) { return whole_slots(partial_bytes + 4); }

namespace {
/// Bytes of an element, of each staged operand.
std::vector<std::int64_t> staged_items(const Kernel& k, const Arrangement& a) {
  std::vector<std::int64_t> items;
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (a.loads[i] == Addressing::kStaged) items.push_back(static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)));
  for (std::size_t i = 0; i < k.stores.size(); ++i)
    if (a.stores[i] == Addressing::kStaged)
      items.push_back(static_cast<std::int64_t>(item_bytes(k.stores[i].to.dtype)));
  return items;
}
}  // namespace

std::int64_t span_unit(const Kernel& k, const Arrangement& a) {
  return kSlotBytes / std::ranges::min(staged_items(k, a));
}

SpanAreas span_areas(const Kernel& k, const Arrangement& a, const std::vector<bool>& held) {
  SpanAreas areas;
  std::multimap<std::int64_t, std::int64_t> left;  // areas of loads that registers hold: where, by bytes of an element
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const auto item = static_cast<std::int64_t>(item_bytes(k.loads[i].dtype));
    areas.loads.push_back(areas.bytes);
    if (a.loads[i] != Addressing::kStaged) continue;
    if (held[i]) left.emplace(item, areas.bytes);
    areas.bytes += item;
  }
  for (std::size_t i = 0; i < k.stores.size(); ++i) {
    const auto item = static_cast<std::int64_t>(item_bytes(k.stores[i].to.dtype));
    const auto found = left.find(item);
    areas.stores.push_back(found == left.end() ? areas.bytes : found->second);
    if (a.stores[i] != Addressing::kStaged) continue;
    if (found == left.end())
      areas.bytes += item;
    else
      left.erase(found);
  }
  return areas;
}

std::int64_t packed_slots(const Kernel& k, const Arrangement& a) {
  return a.packed * product(a.inner) * std::ranges::max(staged_items(k, a)) / kSlotBytes;
}

}  // namespace kfusion::codegen
