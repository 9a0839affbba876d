// Where values wait: operands and their room in the scratch, and what several sweeps have in common.
#include <algorithm>
#include <iterator>
#include <vector>

#include "cpu/fused/program.hpp"
#include "cpu/fused/searches.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kBlock = 4096;             // elements of a block of columns
constexpr std::int64_t kWideBlock = 4096;         // of one whose rows are taken several at once
constexpr std::int64_t kLeastBlock = 256;         // of one that is swept again
constexpr std::int64_t kBlockBytes = 512 * 1024;  // of a block that is swept again

}  // namespace

int FusedProgram::add_operand(std::int64_t place) {
  places.push_back(place);
  return operands++;
}

std::int64_t FusedProgram::add_scratch(std::int64_t size) {
  const std::int64_t place = scratch_bytes;
  scratch_bytes += round_up(size, 64);
  return place;
}

/// Room for the dense rows of a group, off a power of two: rows fall into other sets.
void FusedProgram::copy_rows(const Layout& layout, std::int64_t count, std::int64_t& place, std::int64_t& pitch) {
  pitch = round_up(space.cols * layout.item + tile_bytes(), 64) + 64;
  place = add_scratch(count * pitch);
}

int FusedProgram::take_slot(std::vector<int>& free) {
  if (free.empty()) {
    slots.push_back(add_operand(add_scratch(tile_bytes())));
    return slots.back();
  }
  const int slot = free.back();
  free.pop_back();
  return slot;
}

void FusedProgram::choose_block() {
  wide_ = std::ranges::any_of(kernel.steps, [](const Step& s) { return lane_bytes(s.dtype) == 8; });
  const std::int64_t tile = tile_bytes() / (wide_ ? 8 : 4);
  // Columns that the cache holds until they are swept again, unless that leaves too little of each row to read.
  block = kBlockBytes / (4 * std::max<std::int64_t>(space.rows, 1));
  if (kernel.separate.sweeps == 1 || block < kLeastBlock || block > kBlock) block = wide_blocks_ ? kWideBlock : kBlock;
  if (together > 1) block = space.cols;
  block = std::max<std::int64_t>(1, divide_up(std::min(block, space.cols), tile)) * tile;
}

void FusedProgram::give_homes() {
  homes.resize(kernel.steps.size());
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (has_home(s)) give_home(s);
  }
}

void FusedProgram::give_home(int s) {
  Home& home = homes[at(s)];
  const int vector = kernels->vector_bytes;
  const bool is_of_row = step(s).kind == StepKind::kReduce || is_row_map(s);
  const bool is_array = space.columns && is_of_row;
  const int source = source_of(s);
  home.of_row = !space.columns && (is_of_row || (source >= 0 && sources[at(source)].layout.reach == Reach::kOuter));
  if (is_array) home.scale = wide_ ? 8 : 4, home.stride = vector;
  if (home.of_row) home.scale = lane_bytes(step(s).dtype), home.stride = vector;
  home.place = add_scratch(is_array ? block * home.scale : round_up(group * home.scale, vector) + vector);
  home.operand = add_operand(home.place);
}

void FusedProgram::give_accumulators() {
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (step(s).kind != StepKind::kReduce) continue;
    Reduction r;
    r.step = s, r.sweep = ready(s) - 1;
    r.scalar = scalar_reduction(step(s).op, held(step(s).from));
    if (space.columns) r.scale = std::max(r.scalar.lane_bytes, wide_ ? 8 : 4);
    const std::int64_t tile = tile_bytes() / (wide_ ? 8 : 4);  // that overlaps the last of a block
    r.place = add_scratch(space.columns ? (block + tile) * r.scale : group * kernels->vector_bytes);
    r.operand = add_operand(r.place);
    reductions.push_back(r);
  }
}

/// What several sweeps make of long functions, and values that one searches, is taken once, where the cache holds a row
/// of it.
void FusedProgram::keep_values(std::vector<Wanted>& in_sweep) {
  bool narrow = true;
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s)
    narrow = narrow && (has_home(s) || lane_bytes(step(s).dtype) == 4);
  for (const Wanted& wanted : in_sweep) narrow = narrow && !is_wide(wanted);  // a number of 8 bytes for each row
  if (space.columns || !narrow || space.cols * 4 > kNextRowBytes) return;
  std::vector<int> first(kernel.steps.size(), -1);
  std::vector<char> takes_long = of_long_functions();
  for (int sweep = 0; sweep < std::ssize(in_sweep); ++sweep) {
    walk_back(in_sweep[at(sweep)], [&](int s) {
      if (has_home(s) || source_of(s) >= 0) return false;
      const bool again = first[at(s)] >= 0;
      if (!again) first[at(s)] = sweep;
      if (!again || step(s).kind != StepKind::kMap || (!takes_long[at(s)] && !is_searched(in_sweep[at(sweep)], s)))
        return true;
      keep(s, in_sweep[at(first[at(s)])]);
      takes_long = of_long_functions();
      return false;
    });
  }
}

/// By step, whether it would have to be made of long functions.
std::vector<char> FusedProgram::of_long_functions() const {
  std::vector<char> takes_long(kernel.steps.size());
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (has_home(s) || source_of(s) >= 0 || homes[at(s)].operand >= 0) continue;
    takes_long[at(s)] = (step(s).kind == StepKind::kMap && is_long(step(s).op)) ||
                        std::ranges::any_of(step(s).arguments, [&](int a) { return takes_long[at(a)]; });
  }
  return takes_long;
}

/// A loop searches what lies in memory.
bool FusedProgram::is_searched(const Wanted& in_sweep, int s) const {
  return std::ranges::any_of(in_sweep, [&](const auto& wanted) {
    const Action& a = wanted.second[0];
    return a.kind == Action::Kind::kReduce && searched_by(*this, reductions[at(a.index)]) == s;
  });
}

void FusedProgram::keep(int s, Wanted& in_sweep) {
  Home& home = homes[at(s)];
  if (home.operand >= 0) return;
  home.scale = 4, home.stride = kernels->vector_bytes;
  home.place = add_scratch(group * kept_pitch());
  home.operand = add_operand(home.place);
  kept.push_back(home.operand);
  in_sweep[s].push_back({Action::Kind::kKeep});
}

void FusedProgram::give_row_steps() {
  row_steps.resize(at(operands));
  const auto of_array = [this](const auto& array) {
    if (array.layout.reach == Reach::kDirect && !array.layout.outer.empty())
      row_steps[at(array.operand)] = array.layout.outer.back();
  };
  for (const Source& s : sources) of_array(s);
  if (space.columns) return;
  for (const Target& t : targets) of_array(t);
  for (const Home& h : homes)
    if (h.of_row) row_steps[at(h.operand)] = h.scale;
  for (const Reduction& r : reductions) row_steps[at(r.operand)] = kernels->vector_bytes;
  for (const int operand : kept) row_steps[at(operand)] = kept_pitch();
  for (int operand = 0; operand < operands; ++operand)
    if (row_steps[at(operand)] != 0) moving.push_back(operand);
}

}  // namespace kfusion::cpu
