// Generated row kernels: sweeps over the elements of a row, each of which may reduce them, then values of the row.
//
// What the generator prints as F:
//   Index, kWidth, kSweeps                 indices of elements, elements in a vector, sweeps over a row
//   kWhole, kFetches                       whether vectors have all their elements or none, whether fetch() loads
//   Line line(row)                         addresses at one row
//   at = place(line, first element)        where a vector lies, and how many of its elements exist
//   elements(line)                         those of a row's vectors: all, or a body of whole vectors (framed.cuh);
//   most_elements()                        in any row
//   kEdges; at = edge(line, i)             the most elements of a row besides, and where they lie
//   Held load(line, at)                    operands that stay in registers for all sweeps, as stored
//   Fetched fetch(Sweep, line, at)         those of one sweep; Edge load<1>(), fetch<1>() for edges
//   Partial partial(Sweep)                 of no elements; merge(Partial)
//   void look(Sweep, line, at, Held, Fetched, values, Partial&)    the first pass of pairs of reductions (partial.cuh),
//                                          where kLooks[Sweep] is set; Partial::settle() stands between. kBatches: it
//                                          leaves what it computed in Held, which has room for a batch; both passes go
//                                          over one batch after the other
//   void sweep(Sweep, line, at, Held, Fetched, values, Partial&)   the elements of one vector
//   Held::forget(), take_note_of(Held)     what was derived of it; what sweep() noted of the batch's first vector,
//                                          which is the same for all of them
//   void prefetch(line, first element, elements)         what load() would read of them, where it is contiguous
//   void prefetch_fetched(line, first element, elements)   the same of what the sweeps after the first fetch
//   Values begin(line, at), void finish(Sweep, Values&, Partial), void end(line, at, Values)   once per row
#pragma once
#include "device/framed.cuh"
#include "device/partial.cuh"
#include "device/vector.cuh"

namespace kfusion::device {

/// How threads share the rows. Kernel parameter.
struct Geometry {
  i64 rows;
  i64 warps;   ///< team_rows(), long_rows(): of a team, in all its blocks; tiles(): tiles; weighted_rows(): shares
  i64 splits;  ///< ring_rows(), split_rows(), columns(): blocks that share a row; span_rows(), tiles(): rows of a
               ///< block; weighted_rows(): turns of a share
  i64 box;     ///< bytes of an exchange's box
  i64 ahead;   ///< team_rows(): so many rows further on, what is brought to L2 while this one is reduced; ring_rows():
               ///< stages of a warp
};

template <class F, int kSweep>
using PartialOf = decltype(F::partial(Sweep<kSweep>()));

/// Where the vector lies whose first element is `further`, which is static, after element `from`.
template <class F>
KF_DEVICE auto place_further(const F& f, const typename F::Line& line, typename F::Index from, int further) {
  auto at = f.place(line, from + further);
  at.from = at.first - further;
  at.further = further;
  return at;
}

/// Whether some sweep leaves in registers what it computed of a batch.
template <class F, int kSweep = 0>
constexpr bool batches() {
  if constexpr (kSweep < F::kSweeps) return F::kBatches[kSweep] || batches<F, kSweep + 1>();
  return false;
}

/// Vector k of this thread, of kK in a row: each warp has neighbouring ones. They are taken in batches of kBatch.
template <class F, int kK, int kLanes>
struct RowPlaces {
  static constexpr int kMostOfBatch = batches<F>() ? 2 : 4, kBatch = kK < kMostOfBatch ? kK : kMostOfBatch;
  static constexpr bool kAlone = kLanes == 1;
  /// What is fetched is under way for two vectors at a time, if registers allow it.
  static constexpr int kAhead = kBatch % 2 == 0 && (F::kEdges == 0 || kLanes == 32) ? 2 : 1;
  using Index = typename F::Index;
  const F& f;
  const typename F::Line& line;
  int warp, lane;
  bool exists;
  KF_DEVICE auto operator()(int k) const {
    auto at = place_further(f, line, first(0) + lane * F::kWidth, k * kLanes * F::kWidth);
    if (!exists) at.count = 0;
    return at;
  }
  template <class Sweep>
  KF_DEVICE auto fetch(const Sweep& sweep, const typename F::At& at, int) const {
    return f.fetch(sweep, line, at);
  }
  static KF_DEVICE bool has(int k) { return k < kK; }  ///< the last batch may be shorter
  /// Whether the batch from vector k on has anything, and whether it has everything, for all lanes of the row.
  KF_DEVICE bool some(int k) const { return exists && first(k) < static_cast<Index>(f.elements(line)); }
  KF_DEVICE bool whole(int k) const {
    return exists && first(k + kBatch < kK ? k + kBatch : kK) <= static_cast<Index>(f.elements(line));
  }
  static constexpr int kEdges = (F::kEdges + kLanes - 1) / kLanes;  ///< of a lane
  KF_DEVICE auto edge(int i) const {
    auto at = f.edge(line, i * kLanes + lane);
    if (!exists || warp > 0) at.count = 0;
    return at;
  }

 private:
  KF_DEVICE Index first(int k) const { return static_cast<Index>((warp * kK + k) * kLanes) * F::kWidth; }
};

/// What a lane holds of a row.
template <class F, int kK, int kEdges>
struct HeldRow {
  typename F::Held vectors[kK];
  typename F::Edge edges[kEdges > 0 ? kEdges : 1];
};

/// Loads what is held of the edges of a row.
template <class F, class Places, int kCount>
KF_DEVICE void load_edges(const F& f, const typename F::Line& line, const Places& places,
                          typename F::Edge (&edges)[kCount]) {
  if constexpr (Places::kEdges > 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) edges[i] = f.template load<1>(line, places.edge(i));
  }
}
template <class F, class Places, int kK>
KF_DEVICE void load_held(const F& f, const typename F::Line& line, const Places& places,
                         HeldRow<F, kK, Places::kEdges>& held) {
#pragma unroll
  for (int k = 0; k < kK; ++k) held.vectors[k] = f.load(line, places(k));
  load_edges(f, line, places, held.edges);
}

/// Vectors that exist as a whole or not at all are computed either way, and chosen afterwards (add_to()): one text, no
/// branches. It costs too much where vectors are single elements, or parameters are fetched that are not there, or a
/// thread has a row of its own (ReLU + LayerNorm of 8 float32: 0.94 to 0.81).
template <class F>
inline constexpr bool kMayBeChosen = F::kWhole && F::kWidth > 1 && !F::kFetches;
template <class F, class Places>
inline constexpr bool kChosen = kMayBeChosen<F> && !Places::kAlone;

/// Calls use(place, held vector, what is fetched for it) for a batch of vectors from k on. kAll: all are there, or
/// chosen afterwards, so that nothing is asked, and what is computed of them overlaps.
template <int kSweep, bool kAll, class F, class Places, class Use>
KF_DEVICE void use_batch(const F& f, const typename F::Line& line, const Places& places, typename F::Held* held, int k,
                         const Use& use) {
  constexpr int kBatch = Places::kBatch, kAhead = Places::kAhead;
  const auto place = [&](int i) {
    auto at = places(k + i);
    if constexpr (kAll && !kChosen<F, Places>) at.count = F::kWidth;
    return at;
  };
#pragma unroll
  for (int i = 0; i < kBatch; i += kAhead) {
    decltype(f.fetch(Sweep<kSweep>(), line, place(0))) fetched[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (places.has(k + i + j)) fetched[j] = places.fetch(Sweep<kSweep>(), place(i + j), k + i + j);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (!places.has(k + i + j)) continue;
      const auto at = place(i + j);
      held[i + j].forget();
      if (i + j > 0) held[i + j].take_note_of(held[0]);
      if (kAll || at.count > 0) use(at, held[i + j], fetched[j]);
    }
  }
}
template <int kSweep, class F, class Places, class Use>
KF_DEVICE void use_batch(const F& f, const typename F::Line& line, const Places& places, typename F::Held* held, int k,
                         const Use& use) {
  if constexpr (kChosen<F, Places>) {
    if (places.some(k)) use_batch<kSweep, true>(f, line, places, held, k, use);
  } else if (places.whole(k)) {
    use_batch<kSweep, true>(f, line, places, held, k, use);
  } else if (places.some(k)) {
    use_batch<kSweep, false>(f, line, places, held, k, use);
  }
}
template <int kSweep, class F, class Places, int kCount, class Use>
KF_DEVICE void for_each_edge(const F& f, const typename F::Line& line, const Places& places,
                             typename F::Edge (&edges)[kCount], const Use& use) {
  if constexpr (Places::kEdges > 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto at = places.edge(i);
      if (at.count <= 0) continue;
      const auto fetched = f.template fetch<1>(Sweep<kSweep>(), line, at);
      edges[i].forget();
      use(at, edges[i], fetched);
    }
  }
}
template <int kSweep, class F, class Places, int kK, class Use>
KF_DEVICE void for_each_held(const F& f, const typename F::Line& line, const Places& places,
                             HeldRow<F, kK, Places::kEdges>& held, const Use& use) {
#pragma unroll
  for (int k = 0; k < kK; k += Places::kBatch) use_batch<kSweep>(f, line, places, held.vectors + k, k, use);
  for_each_edge<kSweep>(f, line, places, held.edges, use);
}

/// add(part), which counts where a vector exists.
template <class F, class P, class Add>
KF_DEVICE void add_to(P& part, bool exists, const Add& add) {
  if constexpr (kMayBeChosen<F>) {
    P more = part;
    add(more);
    if (exists) part = more;
  } else {
    add(part);
  }
}

/// Reduces what `for_each` goes over, in two passes where the sweep has pairs.
template <int kSweep, class F, class ForEach>
KF_DEVICE auto reduced(const F& f, const typename F::Line& line, const typename F::Values& values,
                       const ForEach& for_each) {
  const Sweep<kSweep> sweep;
  auto part = f.partial(sweep);
  if constexpr (F::kLooks[kSweep]) {
    for_each([&](const auto& at, auto& held, const auto& in) {
      add_to<F>(part, at.count > 0, [&](auto& sum) { f.look(sweep, line, at, held, in, values, sum); });
    });
    part.settle();
  }
  for_each([&](const auto& at, auto& held, const auto& in) {
    add_to<F>(part, at.count > 0, [&](auto& sum) { f.sweep(sweep, line, at, held, in, values, sum); });
  });
  return part;
}

/// Vectors k, k + 1 ... of a batch, and those of the edges, reduced.
template <int kSweep, class F, class Places>
KF_DEVICE auto reduced_batch(const F& f, const typename F::Line& line, const Places& places, typename F::Held* held,
                             int k, const typename F::Values& values) {
  return reduced<kSweep>(f, line, values, [&](const auto& use) { use_batch<kSweep>(f, line, places, held, k, use); });
}
template <int kSweep, class F, class Places, int kCount>
KF_DEVICE auto reduced_edges(const F& f, const typename F::Line& line, const Places& places,
                             typename F::Edge (&edges)[kCount], const typename F::Values& values) {
  return reduced<kSweep>(f, line, values, [&](const auto& use) { for_each_edge<kSweep>(f, line, places, edges, use); });
}

/// What a thread has in registers, reduced.
template <int kSweep, class F, class Places, int kK>
KF_DEVICE auto reduced_held(const F& f, const typename F::Line& line, const Places& places,
                            HeldRow<F, kK, Places::kEdges>& held, const typename F::Values& values) {
  if constexpr (F::kBatches[kSweep]) {
    auto total = f.partial(Sweep<kSweep>());
#pragma unroll
    for (int k = 0; k < kK; k += Places::kBatch)
      total.merge(reduced_batch<kSweep>(f, line, places, held.vectors + k, k, values));
    if constexpr (Places::kEdges > 0) total.merge(reduced_edges<kSweep>(f, line, places, held.edges, values));
    return total;
  } else {
    return reduced<kSweep>(f, line, values,
                           [&](const auto& use) { for_each_held<kSweep>(f, line, places, held, use); });
  }
}

/// Sweep after sweep over a row that a team holds in registers. `combine` merges what the lanes have.
template <int kSweep, class F, class Places, class Held, class Combine>
KF_DEVICE void sweep_held(const F& f, const typename F::Line& line, const Places& places, Held& held,
                          typename F::Values& values, const Combine& combine) {
  auto total = reduced_held<kSweep>(f, line, places, held, values);
  combine(total, f.partial(Sweep<kSweep>()));
  f.finish(Sweep<kSweep>(), values, total);
  if constexpr (kSweep + 1 < F::kSweeps) sweep_held<kSweep + 1>(f, line, places, held, values, combine);
}

/// A row that kLanes lanes of a warp hold; of one that does not exist nothing is stored at its end.
template <class F, int kLanes, int kK>
KF_DEVICE void held_row(const F& f, const typename F::Line& line, const RowPlaces<F, kK, kLanes>& places, bool exists) {
  HeldRow<F, kK, RowPlaces<F, kK, kLanes>::kEdges> held;
  load_held(f, line, places, held);
  typename F::Values values = f.begin(line, places(0));
  const auto combine = []<class P>(P& own_part, const P&) {
    if constexpr (!P::kNothing) merge_lanes(own_part, kLanes);
  };
  sweep_held<0>(f, line, places, held, values, combine);
  if (exists && places.lane == 0) f.end(line, places(0), values);
}

/// Rows that share a block; kLanes lanes of a warp hold one, in kK vectors each. Barriers: none.
template <class F, int kLanes, int kK>
KF_DEVICE void short_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  const int rows_per_block = static_cast<int>(blockDim.x) / kLanes, own = static_cast<int>(threadIdx.x) / kLanes;
  const Row first = static_cast<Row>(blockIdx.x) * rows_per_block;
  const bool exists = own < static_cast<Row>(g.rows) - first;
  const auto line = f.line(exists ? first + own : first);
  held_row<F, kLanes, kK>(f, line, {f, line, 0, static_cast<int>(threadIdx.x) % kLanes, exists}, exists);
}

/// Asks for `vectors` vectors of a row from element `first` on, so that memory is busy while others are reduced.
template <class F, class Index>
KF_DEVICE void prefetch_segment(const F& f, const typename F::Line& line, Index first, int vectors) {
  const i64 rest = f.elements(line) - first, all = static_cast<i64>(vectors) * F::kWidth;
  if (rest > 0) f.prefetch(line, f.place(line, first).first, static_cast<int>(rest < all ? rest : all));
}

/// Asks for what later sweeps fetch of a row: for the first rows nothing has brought that to L2 yet.
template <class F, class Index>
KF_DEVICE void prefetch_later(const F& f, const typename F::Line& line, Index first, int vectors) {
  const i64 rest = f.elements(line) - first, all = static_cast<i64>(vectors) * F::kWidth;
  if (rest > 0) f.prefetch_fetched(line, f.place(line, first).first, static_cast<int>(rest < all ? rest : all));
}

/// Rows that a team of warps (of a block or a cluster) holds, kK vectors a lane. kAhead: rows further on are brought to
/// L2. Barriers: one per reducing sweep.
template <class F, int kK, bool kAhead>
KF_DEVICE void team_rows(const F& f, const Geometry& g) {
  using Places = RowPlaces<F, kK, 32>;
  extern __shared__ __align__(16) char shared[];
  const int block_warps = blockDim.x / 32, warps = static_cast<int>(g.warps);
  const int warp = block_rank() * block_warps + threadIdx.x / 32;
  Exchange exchange(shared, static_cast<int>(g.box));
  const auto combine = [&]<class P>(P& own_part, const P& identity) {
    if constexpr (!P::kNothing) merge_team(own_part, identity, exchange, warp, warps);
  };
  const i64 row = cluster_index();
  const auto line = f.line(static_cast<typename F::Row>(row));
  const Places places{f, line, warp, static_cast<int>(threadIdx.x) % 32, true};
  HeldRow<F, kK, Places::kEdges> held;
  load_held(f, line, places, held);
  __syncwarp();  // else loads move behind questions about earlier ones (32768 float32: 0.95 of a copy to 0.75)
  if (places.lane == 0) {
    const auto own = static_cast<typename F::Index>(warp * kK * 32) * F::kWidth;
    if (kAhead && row + g.ahead < g.rows)
      prefetch_segment(f, f.line(static_cast<typename F::Row>(row + g.ahead)), own, kK * 32);
    if (row < g.ahead) prefetch_later(f, line, own, kK * 32);
  }
  typename F::Values values = f.begin(line, places(0));
  sweep_held<0>(f, line, places, held, values, combine);
  if (warp == 0 && places.lane == 0) f.end(line, places(0), values);
  exchange.finish();
}

// ---- rows that no team can hold -------------------------------------------------------------------------------------

/// How many partial results are merged one by one before they are merged into the total: keeps sums of many accurate.
inline constexpr int kMergesInBlock = 32;

/// Chunks `first`, `first + step`, ... below `chunks` of a row; a chunk is kK vectors of each of `threads` threads.
template <int kK, int kSweep, class F>
KF_DEVICE auto sweep_chunks(const F& f, const typename F::Line& line, const typename F::Values& values, int thread,
                            int threads, i64 first, i64 step) {
  using Index = typename F::Index;
  const Sweep<kSweep> sweep;
  const i64 chunk_elements = static_cast<i64>(threads) * kK * F::kWidth, elements = f.elements(line);
  const i64 chunks = (elements + chunk_elements - 1) / chunk_elements;
  auto total = f.partial(sweep), block = f.partial(sweep);
  int merges = 0;
  for (i64 i = first; i < chunks; i += step) {
    // Every second sweep runs backwards: what was read last is the likeliest to be in L2.
    const Index chunk = static_cast<Index>(kSweep % 2 ? chunks - 1 - i : i);
    const auto places = [&](int k) {
      const Index in_chunk = static_cast<Index>(k * threads + thread) * F::kWidth;
      return f.place(line, chunk * static_cast<Index>(chunk_elements) + in_chunk);
    };
    decltype(f.fetch(sweep, line, places(0))) fetched[kK];
#pragma unroll
    for (int k = 0; k < kK; ++k) fetched[k] = f.fetch(sweep, line, places(k));
    auto part = f.partial(sweep);
    if constexpr (F::kLooks[kSweep]) {
#pragma unroll
      for (int k = 0; k < kK; ++k)
        if (const auto at = places(k); at.count > 0)
          f.look(sweep, line, at, typename F::Held(), fetched[k], values, part);
      part.settle();
    }
#pragma unroll
    for (int k = 0; k < kK; ++k)
      if (const auto at = places(k); at.count > 0)
        f.sweep(sweep, line, at, typename F::Held(), fetched[k], values, part);
    block.merge(part);
    if (++merges == kMergesInBlock) {
      total.merge(block);
      block = f.partial(sweep);
      merges = 0;
    }
  }
  total.merge(block);
  if constexpr (F::kEdges > 0) {
    for (int i = first == 0 ? thread : F::kEdges; i < F::kEdges; i += threads)
      if (const auto at = f.edge(line, i); at.count > 0) {
        const auto in = f.template fetch<1>(sweep, line, at);
        typename F::Edge none;
        total.merge(reduced<kSweep>(f, line, values, [&](const auto& use) { use(at, none, in); }));
      }
  }
  return total;
}

template <int kK, int kSweep, class F>
KF_DEVICE void sweep_long(const F& f, const typename F::Line& line, typename F::Values& values, Exchange& exchange,
                          int warps) {
  const int thread = static_cast<int>(block_rank() * blockDim.x + threadIdx.x);
  auto total = sweep_chunks<kK, kSweep>(f, line, values, thread, 32 * warps, 0, 1);
  if constexpr (!PartialOf<F, kSweep>::kNothing)
    merge_team(total, f.partial(Sweep<kSweep>()), exchange, thread / 32, warps);
  f.finish(Sweep<kSweep>(), values, total);
  if constexpr (kSweep + 1 < F::kSweeps) sweep_long<kK, kSweep + 1>(f, line, values, exchange, warps);
}

/// Rows of any length, read again in every sweep, by all warps of a cluster.
template <class F, int kK>
KF_DEVICE void long_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  extern __shared__ __align__(16) char shared[];
  Exchange exchange(shared, static_cast<int>(g.box));
  for (Row r = cluster_index(); r < static_cast<Row>(g.rows); r += cluster_count()) {
    const auto line = f.line(r);
    typename F::Values values = f.begin(line, f.place(line, 0));
    sweep_long<kK, 0>(f, line, values, exchange, static_cast<int>(g.warps));
    if (block_rank() == 0 && threadIdx.x == 0) f.end(line, f.place(line, 0), values);
  }
  exchange.finish();
}

/// Whether this block is the last of `blocks` that come here; it then sees what the others wrote. The ticket, at first
/// 0, is 0 again afterwards.
KF_DEVICE bool is_last(u32* ticket, u32 blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(ticket, blocks - 1) == blocks - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

/// Rows of one sweep whose chunks `splits` blocks share; the one that ends last merges their parts, in order.
/// Workspace: a part per block. Standing: a ticket of 16 bytes per row.
template <class F, int kK>
KF_DEVICE void split_rows(const F& f, const Geometry& g, char* workspace, char* standing) {
  using Row = typename F::Row;
  using P = PartialOf<F, 0>;
  extern __shared__ __align__(16) char shared[];
  const u32 splits = static_cast<u32>(g.splits);
  const Row r = static_cast<Row>(blockIdx.x / splits);
  const u32 split = blockIdx.x % splits;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const auto line = f.line(r);
  typename F::Values values = f.begin(line, f.place(line, 0));
  P total = sweep_chunks<kK, 0>(f, line, values, threadIdx.x, blockDim.x, split, splits);
  Exchange exchange(shared, static_cast<int>(g.box));
  merge_team(total, f.partial(Sweep<0>()), exchange, warp, warps);
  if (splits > 1) {
    P* parts = reinterpret_cast<P*>(workspace) + static_cast<i64>(r) * splits;
    if (threadIdx.x == 0) parts[split] = total;
    if (!is_last(reinterpret_cast<u32*>(standing + 16 * static_cast<i64>(r)), splits)) return;
    total = merge_parts(parts, static_cast<int>(splits), f.partial(Sweep<0>()));
  }
  f.finish(Sweep<0>(), values, total);
  if (threadIdx.x == 0) f.end(line, f.place(line, 0), values);
}

}  // namespace kfusion::device
