// A plan: which nodes share a kernel, and why the others do not.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/device.hpp"
#include "kfusion/plan/executor.hpp"
#include "kfusion/plan/pattern.hpp"
#include "kfusion/plan/views/domain.hpp"
#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

class Measured;  // prices/measured.hpp

/// Why two neighbours are in different kernels. One sentence each in reasons.cpp.
enum class Reason : std::uint8_t {
  kReductionBarrier,   ///< the whole array must be reduced before its result is used
  kDomainMismatch,     ///< the two run over different elements
  kGather,             ///< the value is taken from at positions that are data
  kLibraryCall,        ///< a function of the array library computes it
  kLibraryIsFaster,    ///< the same, and kernels are predicted to take longer
  kCrossDevice,        ///< the two are in different memories
  kContraction,        ///< a matrix product or convolution is a kernel of its own here
  kResources,          ///< inputs, outputs or on-chip memory would not suffice
  kMultipleConsumers,  ///< the value is stored for another reader, and computing it twice costs more
  kNoGain,             ///< possible, but more bytes would move
  kCycle,              ///< a third kernel has to run in between
  kNotImplemented,     ///< possible, but no executor has such a kernel
  kForbidden,          ///< the caller asked for it
  kUnfused,            ///< one kernel per stage was asked for
};
std::string_view name(Reason r);  ///< "reduction_barrier", ...

/// One read of a kernel: a value of another kernel or an input, and how it is seen from the domain.
struct Load {
  Access access;             ///< over the extents that the reader loops over
  NodeId reader = 0;         ///< the first node that reads it so
  bool every_sweep = false;  ///< as large as the domain: read again where rows do not stay on chip
};

struct Group {
  Pattern pattern = Pattern::kPointwise;
  Extents domain;             ///< extents that the kernel runs over, without those of 1
  std::vector<int> reduced;   ///< axes of the domain that are reduced, ascending; the rest are rows
  std::vector<NodeId> nodes;  ///< computed here, in order
  std::vector<Axes> spans;    ///< by entry of `nodes`: the axes of the domain along which its value varies
  std::vector<NodeId> views;  ///< folded into loads and stores
  std::vector<Load> loads;
  std::vector<NodeId> stores;    ///< nodes of this group that others or the caller read
  std::vector<NodeId> deferred;  ///< monotone maps before a max (min): computed once per result, after it
  int passes = 1;                ///< sweeps over the domain: where rows stay on chip, only the first reads memory
  bool row_on_chip = true;
  const Executor* executor = nullptr;  ///< nullptr where none of those that were asked runs it, and
  std::string missing;                 ///< why
  std::string key;                     ///< by which Plan::measured knows it; empty unless times are measured

  std::int64_t rows() const;
  std::int64_t cols() const;
};

struct Refusal {
  NodeId producer = 0, consumer = 0;           ///< nodes of the graph, never views; the producer may be an input
  int producer_group = 0, consumer_group = 0;  ///< -1 for an input
  Reason reason = Reason::kDomainMismatch;
  std::string sentence;
};

struct PlanOptions {
  bool fuse = true;     ///< false: one group per stage; of what cannot be one kernel, several
  bool by_time = true;  ///< false: bytes alone decide what shares a kernel, not predicted times
  /// Pairs of stage names as the plan's graph has them, or op names, that may fuse, when not empty only those; and
  /// pairs that may not.
  std::vector<std::pair<std::string, std::string>> allow, forbid;
  int max_inputs = 64, max_outputs = 16;
  Executors executors = {&anyone()};  ///< kernels that one of them runs
  /// Products, by name_in_variants(), whose kernels take no operations with them where an executor would run them: it
  /// would take longer.
  std::map<const Executor*, std::set<std::string>> apart;
  /// Values, by name_in_variants(), that a kernel which would compute them again reads instead: that takes less.
  std::set<std::string> stored;
  int most_waiting = 1;  ///< products of one depth, which nobody waits for, in a kernel that waits for all of them
  std::shared_ptr<const Measured> measured;  ///< on the device, if anything was

  /// Whether the plan shows what is possible. One that is to run has no work without elements, and results that are
  /// arrays of their own.
  bool beyond_executors() const;

  /// Whether the caller names kernels, and with them the reductions and values that there are.
  bool names_kernels() const { return !allow.empty() || !forbid.empty(); }
};

struct Plan {
  Graph graph;  ///< simplified; a producer that is computed in several kernels stands in it several times;
                ///< stages have unique names: "relu_2" is the second call
  std::vector<Group> groups;  ///< in an order in which they can run
  std::vector<Refusal> refusals;
  std::vector<Extents>
      computed;               ///< by node: the extents it is computed and stored in; a map under a slice: the slice's
  std::vector<int> group_of;  ///< by node: the group that it is computed in (or folded into, for views); -1 for sources
  FoldedGraph folded;         ///< how each node reads its arguments
  std::shared_ptr<const Measured> measured;  ///< of PlanOptions
};

struct PlanPair {
  Plan chosen;                  ///< as the options say
  Plan unfused;                 ///< one kernel per stage, of what cannot be one several
  std::optional<Plan> library;  ///< as the library runs it, a kernel for each of its calls; where that differs
};

/// Deterministic; the order of a commutative op's arguments does not matter. A fused plan never moves more bytes (of
/// either count, see traffic.hpp) than the unfused one, never launches more kernels, and is never predicted to take
/// longer, unless the caller says what may share a kernel (`allow`). Throws std::overflow_error for
/// more than 2^63 bytes, and std::logic_error where a plan does not hold together (check.hpp).
PlanPair make_plans(const Graph& g, const Device& device, const PlanOptions& options = {});

/// The plans of which the chosen one is the fastest, but for alternatives of the library: with all executors, and
/// without each of those that take operations into products.
std::vector<Plan> rival_plans(const Graph& g, const Device& device, const PlanOptions& options);

/// The chosen one, without refusals.
Plan make_plan(const Graph& g, const Device& device, const PlanOptions& options = {});

}  // namespace kfusion
