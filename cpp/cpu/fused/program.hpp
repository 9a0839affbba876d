// From the steps of a Kernel to programs over tiles: what is computed when, what stands where.
//
// One element program per sweep; before each sweep, and after the last, a program for the values of rows. Where rows
// lie along the flat index (kRows, kFullReduction) a group of rows goes through each sweep, one after the other, and a
// tile of these programs has a value of each; where each element of a tile is a row (kColumns) they are arrays along
// it.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "cpu/fused/reach.hpp"
#include "cpu/fused/reductions.hpp"
#include "cpu/fused/tile_steps.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {

/// A program in both widths, and the operands that the one who runs it has to see to.
struct TileProgram {
  std::vector<TileStep> steps[kWidths];
  std::vector<TileStep> joined;  ///< those of full width, for tiles all of whose elements count
  std::vector<TileFetch> fetches;
  std::vector<int> sources, targets, reductions;  ///< that it reads, writes, takes up
  std::size_t staged = 0;                         ///< the first sources: what its steps read, not its loops
  int keeps = 0;                                  ///< values that it leaves in their homes
  std::vector<int> homes;                         ///< steps whose values it finds in their homes
  bool wide = false;                              ///< elements take 8 bytes of a register each
  std::int64_t elements[kWidths] = {};            ///< of a tile
  bool copies = false;                            ///< elements go through stages in full tiles, too
  bool takes_rows = false;                        ///< of columns: several rows at once, where whole tiles are joined
  RowLoop loop;                                   ///< of rows: all steps, where there is such a loop
  std::vector<RowLoop> searches;                  ///< of rows: what no step does, before the steps
  bool loops_store = false;                       ///< some of these, to arrays

  std::int64_t per_tile(Width w) const { return elements[static_cast<int>(w)]; }
  std::int64_t per_register() const { return per_tile(Width::kShort); }
  bool has_steps() const { return steps[0].size() > 1; }  ///< and the last one
  bool empty() const { return targets.empty() && reductions.empty() && keeps == 0 && searches.empty(); }
  bool stores() const { return loops_store || !targets.empty(); }
};

/// An array that the kernel reads: a load, the numbers of an iota, or the row of a table at a row's index.
struct Source {
  DType dtype = DType::kFloat32;  ///< in memory; of an iota, of the stage
  int array = 0;                  ///< of FusedCall::loads
  int table = -1, index = -1;     ///< of Kernel::tables; the step whose value, which is in its home, is the row's index
  int indices = -1;               ///< the source of that step, where the next rows' indices can be read ahead
  Layout layout;
  bool iota = false;
  std::int64_t to_next = 0;  ///< bytes to the next group of rows, where that is fetched meanwhile
  int operand = 0;           ///< of TileContext::at
  std::int64_t stage = 0;    ///< in the scratch: room for a tile
  bool shared = false;       ///< by all rows
  std::int64_t period = 0;   ///< elements that come again and again: so many, and a tile behind them, are at `rows`
  bool copied = false;  ///< to dense rows in the scratch, from `from`: each group's, what is shared once, as float32
  Layout from;
  std::int64_t rows = 0, pitch = 0;  ///< where they begin, bytes from row to row
};

struct Target {
  int step = 0;
  DType dtype = DType::kFloat32;
  Layout layout;
  bool per_row = false;
  int operand = 0;
  std::int64_t stage = 0;
  bool copied = false;    ///< as of a Source
  bool summed = false;    ///< the rows of a group are added to the sums of their part (Store::parts)
  bool in_place = false;  ///< where these lie, by the loop or the step that has them
  Layout to;
  std::int64_t rows = 0, pitch = 0;
};

struct Reduction {
  int step = 0, sweep = 0;
  ScalarReduction scalar;
  int operand = 0;         ///< its accumulators
  std::int64_t place = 0;  ///< in the scratch
  int scale = 0;           ///< kColumns: bytes from element to element
  int lanes = 0;           ///< kRows: accumulators in a register
};

/// Where a value stands that one program leaves to others.
struct Home {
  int operand = -1, scale = 0, stride = 0;
  bool of_row = false;     ///< kRows: one for each row of a group; sweeps see that of their row
  std::int64_t place = 0;  ///< in the scratch
};

/// Sweeps that are taken chunk by chunk: one, or two where the second reduction can be taken about each chunk's own
/// first (Kernel::pairs) and put right when the chunks are merged.
struct Phase {
  int first = 0, last = 0;
  struct Pair {
    kfusion::Pair::Kind kind;
    int first = 0, second = 0;  ///< of `reductions`
  };
  std::vector<Pair> pairs = {};
  RowMoments moments = {};  ///< both sweeps as one, where there is such a loop
};

/// A program that is nothing but rows of Kernel::tables[table], at the indices that load `index` has.
struct RowCopy {
  int table = 0, index = 0;
};

/// What happens to a value when it is made.
struct Action {
  enum class Kind : std::uint8_t { kStore, kReduce, kKeep } kind = Kind::kStore;
  int index = 0;  ///< of the target or the reduction; kKeep: it goes to its home
};
using Wanted = std::map<int, std::vector<Action>>;  ///< by step

/// Half types are computed as float32: a cast from one to the other does nothing.
bool is_empty_cast(const Step& s);

/// Bytes of a group of rows, whose successor the first-level cache holds beside it.
inline constexpr std::int64_t kGroupBytes = 8 * 1024;
/// Bytes of a row that the second-level cache holds beside its successor.
inline constexpr std::int64_t kNextRowBytes = 256 * 1024;

/// All that does not depend on addresses.
class FusedProgram {
 public:
  /// `wide_blocks`: of a kernel that takes several rows of columns at once. `together`: rows that lie side by side in
  /// it, whose results are to be combined (side_by_side.hpp).
  explicit FusedProgram(const Kernel& k, bool wide_blocks = false, std::int64_t together = 1);
  /// Of columns: several rows are taken each time that accumulators come and go, so that they may come from the
  /// second-level cache.
  bool takes_rows() const;

  Kernel kernel;
  Space space;
  std::int64_t together;
  const TileKernels* kernels;
  std::vector<Source> sources;  ///< loads, then iotas, then tables whose rows are read as a whole
  std::vector<Layout> tables;   ///< by Kernel::tables
  std::vector<Target> targets;
  std::vector<Reduction> reductions;
  std::vector<Home> homes;  ///< by step
  TileProgram scalars;      ///< brings sources that are one element for the whole kernel to their homes
  std::vector<TileProgram> rows, sweeps;
  std::vector<int> slots;  ///< operands with room for a tile
  std::vector<int> kept;   ///< operands with room for a row: values that a later sweep uses again

  int operands = 0;
  std::int64_t bytes = 0, stored_bytes = 0;  ///< that it moves, that it writes
  std::int64_t work = 0;                     ///< bytes, weighted by the steps that are taken on them
  std::vector<Phase> phases;                 ///< the sweeps of a row, where rows lie along the flat index
  RowAhead ahead;                            ///< of rows from memory, where there is such a loop
  std::optional<RowCopy> copy;               ///< all of the program, where it is one
  ColumnSearch search;                       ///< of columns: the first two sweeps, where there is such a loop
  std::int64_t scratch_bytes = 0;
  std::int64_t homes_begin = 0, homes_end = 0;  ///< in the scratch
  std::vector<std::int64_t> places;             ///< by operand: in the scratch, -1 elsewhere
  std::vector<std::int64_t> row_steps;          ///< by operand: bytes to its next row
  std::vector<int> moving;                      ///< operands for which that is not 0
  std::int64_t group = 1;                       ///< rows that go through each sweep together
  bool may_stream = true;                       ///< no store goes past the cache to what is read from there
  std::int64_t block = 0;                       ///< kColumns: elements whose accumulators and row values have room

  // For the emitter.
  /// Calls visit(step) for all that `wanted` is made of, what uses a value before the value; it says whether to go on
  /// to the step's arguments.
  template <class Visit>
  void walk_back(const Wanted& wanted, Visit visit) const {
    std::vector<char> reached(kernel.steps.size());
    for (const auto& [s, actions] : wanted) reached[static_cast<std::size_t>(s)] = true;
    for (std::size_t s = kernel.steps.size(); s-- > 0;)  // arguments come before what is made of them
      if (reached[s] && visit(static_cast<int>(s)))
        for (const int a : kernel.steps[s].arguments) reached[static_cast<std::size_t>(a)] = true;
  }
  int source_of(int step) const;  ///< -1: it is none
  /// Whether a loop of this sweep has left the step's value in its home by now.
  bool is_kept_by_loop(int step) const { return std::ranges::find(kept_by_loops_, step) != kept_by_loops_.end(); }
  bool has_home(int step) const;  ///< one value for all elements of a row: it waits in its home for who uses it
  int take_slot(std::vector<int>& free);
  /// What is prefetched while `source` is read in a sweep, by registers of that many elements; stride 0: nothing.
  TileFetch fetch_of(const Source& source, int sweep, int elements) const;

 private:
  const Step& step(int s) const { return kernel.steps[static_cast<std::size_t>(s)]; }
  int ready(int s) const { return kernel.separate.ready[static_cast<std::size_t>(s)]; }
  std::int64_t tile_bytes() const { return kernels->registers * kernels->vector_bytes; }
  std::int64_t kept_pitch() const { return round_up(space.cols * 4 + tile_bytes(), 64); }

  // program.cpp: what it reads and writes.
  void choose_group();
  bool varies_along_row(int s) const;
  bool copies_rows() const;  ///< rows that are taken whole: in groups, and dense
  void add_sources(const std::vector<Operand>& operands, bool iota);
  bool repeats(const Source& s) const;
  void add_tables();
  bool takes_rows_of(int take) const;
  void add_row_source(int take);
  void add_targets();
  bool is_row_map(int s) const;
  void find_row_values();
  void count_bytes();
  void weigh();

  // program_places.cpp: where values wait.
  int add_operand(std::int64_t place);
  std::int64_t add_scratch(std::int64_t bytes);
  void copy_rows(const Layout& layout, std::int64_t count, std::int64_t& place, std::int64_t& pitch);
  void choose_block();
  void give_homes();
  void give_home(int step);
  void give_accumulators();
  void keep_values(std::vector<Wanted>& in_sweep);
  std::vector<char> of_long_functions() const;
  bool is_searched(const Wanted& in_sweep, int s) const;
  void keep(int s, Wanted& in_sweep);
  void give_row_steps();

  // program_sweeps.cpp: what is computed when.
  void emit_programs();
  TileProgram program_of(Wanted wanted, int sweep);
  bool is_wide(const Wanted& wanted) const;
  void size_tiles(TileProgram& program) const;
  std::vector<TileProgram> take_loops(Wanted& wanted, int sweep);
  void take_expression(TileProgram& program, const Wanted& wanted, int sweep);
  void find_sums();
  void find_phases();
  bool takes_pairs(int sweep, Phase& phase) const;
  RowMoments moments_of(const Phase& phase) const;

  // program_fetches.cpp: what is prefetched.
  struct Share {
    int before = 0, mine = 0, all = 1;
  };
  Share share_of_next_group(int sweep, std::int64_t item) const;
  void share_fetches(std::vector<TileProgram>& loops) const;
  void fetch_unread(std::vector<RowLoop*> loops, int sweep);
  void find_ahead();

  std::vector<int> row_source_;  ///< by Kernel::tables: of `sources`, -1 where elements are taken one by one
  bool wide_ = false;            ///< kColumns: all programs are
  bool wide_blocks_;
  Wanted in_this_sweep_;
  std::vector<int> kept_by_loops_;  ///< of this sweep
  std::vector<int> owed_;           ///< sources whose next rows no sweep has fetched so far
};

}  // namespace kfusion::cpu
