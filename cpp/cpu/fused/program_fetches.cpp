// What is prefetched: by each sweep, of arrays in memory and of the next group of rows.
#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "cpu/fused/program.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kAheadBytes = 2048;       // in a pass through memory: about its latency
constexpr std::int64_t kFetchedBytes = 3 << 20;  // fewer stay in the cache, where prefetches only take time

}  // namespace

/// Rows that the cache holds: sweeps fetch the next group meanwhile, so that memory is never idle. Of a small group the
/// sweep before the last does: prefetches and stores would wait for each other; or of two the last, where the first
/// only adds up, and would wait for what it prefetches (gradient of softmax of 2048 x 2048: 1.25 ms instead of 1.45).
/// Of a larger one every sweep fetches its part. Sweeps of exponentials or the like, which take the longest, have three
/// quarters (softmax of 4096 columns: 0.63 of a copy's rate instead of 0.53); where there is none the last one, which
/// stores and has the least to compute, has the largest (layernorm by loops written for the purpose: 0.83 with equal
/// parts, 0.91 with a quarter, a quarter and a half).
FusedProgram::Share FusedProgram::share_of_next_group(int sweep, std::int64_t item) const {
  const int all_sweeps = kernel.separate.sweeps;
  std::vector<char> computes(at(all_sweeps));
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s)
    if (!has_home(s) && step(s).kind == StepKind::kMap && info(step(s).op).signature == Signature::F_F)
      computes[at(ready(s))] = true;
  if (group * space.cols * item <= kGroupBytes) {
    const int chosen = all_sweeps == 2 && !computes[0] ? 1 : std::max(0, all_sweeps - 2);
    return {0, sweep == chosen ? 1 : 0, 1};
  }
  const int count = static_cast<int>(std::ranges::count(computes, true)), others = all_sweeps - count;
  if (count == 0 || others == 0) {
    const int all = std::max(4, all_sweeps);
    return {sweep, sweep == all_sweeps - 1 ? all - sweep : 1, all};
  }
  Share share{0, 0, 4 * others * count};
  for (int k = 0; k <= sweep; ++k) share.before += share.mine, share.mine = computes[at(k)] ? 3 * others : count;
  return share;
}

TileFetch FusedProgram::fetch_of(const Source& source, int sweep, int elements) const {
  const std::int64_t to_next = source.layout.outer.empty() ? 0 : source.layout.outer.back();
  const std::int64_t item = source.layout.item;
  TileFetch fetch{source.operand, static_cast<std::int32_t>(elements * item),
                  std::countr_zero(static_cast<unsigned>(elements)), 0};
  if (source.copied || bytes < kFetchedBytes) return {};
  if (space.columns) {
    const std::int64_t rows_ahead = 1 + kAheadBytes / (std::min(block, space.cols) * item);
    fetch.ahead = sweep == 0 ? rows_ahead * to_next : 0;
  } else if (source.layout.to_run != 0) {
    fetch.ahead = source.layout.flat[0];  // the same place of the next run
  } else if (space.rows == 1 || (to_next != 0 && source.to_next == 0)) {
    fetch.ahead = kAheadBytes;
  } else if (source.to_next != 0) {
    const Share share = share_of_next_group(sweep, item);
    if (share.mine == 0) {
      fetch.stride = 0;
      return fetch;
    }
    fetch.stride = (fetch.stride * share.mine + share.all - 1) / share.all;
    fetch.ahead = source.to_next + share.before * (space.cols * item / share.all);
    fetch.far = group * space.cols * item > kGroupBytes;
  }
  if (fetch.ahead == 0) fetch.stride = 0;
  return fetch;
}

/// Each array is prefetched by one of the loops that read it.
void FusedProgram::share_fetches(std::vector<TileProgram>& loops) const {
  std::vector<int> seen;
  const auto is_first = [&seen](const TileFetch& f) {
    if (f.stride == 0 || std::ranges::count(seen, f.operand) > 0) return false;
    seen.push_back(f.operand);
    return true;
  };
  for (TileProgram& l : loops) {
    if (!is_first(l.loop.fetch)) l.loop.fetch = {};
    const int count = std::exchange(l.loop.fetched, 0);
    for (int k = 0; k < count; ++k)
      if (is_first(l.loop.fetches[k])) l.loop.fetches[l.loop.fetched++] = l.loop.fetches[k];
  }
}

/// Loops of expressions fetch their part of the next rows of arrays that no loop of the sweep reads, and the last
/// sweep's what the others could not.
void FusedProgram::fetch_unread(std::vector<RowLoop*> loops, int sweep) {
  const auto fetches = [](const RowLoop& l, int operand) {
    return (l.fetch.stride != 0 && l.fetch.operand == operand) ||
           std::any_of(l.fetches, l.fetches + l.fetched, [=](const TileFetch& f) { return f.operand == operand; });
  };
  const auto room =
      std::ranges::find_if(loops, [](const RowLoop* l) { return l->arrays[0] >= 0 && l->fetched < kFormFetches; });
  const bool is_last = sweep == kernel.separate.sweeps - 1;
  for (int k = 0; k < static_cast<int>(sources.size()); ++k) {
    const Source& s = sources[at(k)];
    const int elements = kernels->vector_bytes / lane_bytes(s.dtype);
    TileFetch fetch = s.to_next == 0 ? TileFetch{} : fetch_of(s, sweep, elements);
    if (is_last && std::ranges::count(owed_, k) > 0)
      fetch = {s.operand, elements * s.layout.item, std::countr_zero(static_cast<unsigned>(elements)), s.to_next};
    if (fetch.stride == 0 || std::ranges::any_of(loops, [&](const RowLoop* l) { return fetches(*l, s.operand); }))
      continue;
    if (room != loops.end() && (*room)->fetched < kFormFetches)
      (*room)->fetches[(*room)->fetched++] = fetch;
    else if (group * space.cols * s.layout.item <= kGroupBytes)
      owed_.push_back(k);
  }
}

/// Where the sweeps are moments and a store of dense rows, the next group's moments are taken while a group is stored.
void FusedProgram::find_ahead() {
  const auto copied = [](const auto& array) { return array.copied; };
  if (phases.size() != 2 || sweeps.size() != 3 || phases[0].moments.run == nullptr || bytes < kFetchedBytes) return;
  if (!sweeps[2].reductions.empty()) return;
  if (std::ranges::any_of(sources, copied) || std::ranges::any_of(targets, copied) || kernel.parts() > 0) return;
  ahead = kernels->row_ahead(phases[0].moments, sweeps[2].loop, kAheadBytes);
}

}  // namespace kfusion::cpu
