// Kernels under construction: each computing node starts as a part of its own, and parts are merged while the rules
// allow it. Every rule that keeps two apart gives a Reason. Parts always stand in an order in which they can run.
#pragma once
#include <optional>
#include <vector>

#include "kfusion/plan/partition/part_order.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/views/domain.hpp"
#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

/// One kernel to be. All its nodes are loops over axes of one domain: a FULL node over all of them, a row-level node
/// over those that are not reduced, a small one (a parameter computed on the way) over any others.
struct Part {
  WorkKind kind = WorkKind::kPointwise;  ///< kReduce once there is a reduction; contractions stay such
  Extents domain;
  Axes reduced = 0;
  bool whole = false;         ///< reduced with axis=None: no row of a matrix but everything
  bool second_sweep = false;  ///< a reduced value is read again by all elements of its row
  bool too_tall = false;      ///< and they are strided, take several sweeps and do not fit on chip in between
  bool joined = false;        ///< made of several by a pattern around a product: `domain` is that of one of them
  bool attention = false;     ///< softmax(q k^T) v
  bool sums = false;          ///< has partial sums
  bool gathers = false;       ///< takes elements at positions that are data
  Place place;
  /// What is computed, what is read from outside (each once, ascending; of a join also its parts) and what is stored.
  std::vector<NodeId> nodes;
  NodeIds sources, stores;
  std::vector<NodeId> deferred;  ///< as in Group

  Axes all() const { return all_axes(domain.size()); }
  Axes kept() const { return all() & ~reduced; }
};

/// One node reading another, where both compute.
struct Edge {
  NodeId producer = 0, consumer = 0;
  const Access* access = nullptr;
};

/// Bytes of neighbouring columns that lie on chip together at least: a sector of memory, a line of a CPU's cache.
inline std::int64_t tile_width(const Device& device) { return device.is_cpu ? 64 : 32; }

/// What is missing for a kernel that PlanOptions::apart rules out.
inline constexpr std::string_view kTakesLonger = "it is predicted to take longer than two";
/// Why there is no kernel for which something is missing.
inline Reason reason_for(std::string_view missing) {
  return missing == kTakesLonger ? Reason::kNoGain : Reason::kNotImplemented;
}

class Partition {
 public:
  Partition(const Graph& g, const FoldedGraph& folded, const Device& device, const PlanOptions& options);

  /// Computing nodes, each after what it reads; a graph's order does not depend on the order in which it was written.
  const std::vector<NodeId>& order() const { return order_; }
  int part_of(NodeId n) const { return part_of_[static_cast<std::size_t>(n)]; }
  const Part& part(int i) const { return parts_[static_cast<std::size_t>(i)]; }
  int parts() const { return static_cast<int>(parts_.size()); }  ///< merged ones are left empty
  /// Reads of n that come out of kernels.
  std::vector<Edge> edges_into(NodeId n) const;
  /// How n reads its arguments, views folded.
  const std::vector<Access>& accesses(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)].reads; }
  /// Everything that n reads, views folded.
  NodeIds reads(NodeId n) const;
  const NodeIds& readers(NodeId n) const { return readers_[static_cast<std::size_t>(n)]; }
  /// Whether it is stored whoever reads it: a result, or a part of a join.
  bool is_output(NodeId n) const { return is_output_[static_cast<std::size_t>(n)]; }
  /// The axes of its part's domain along which the value of n varies.
  Axes span(NodeId n) const { return span_[static_cast<std::size_t>(n)]; }
  /// How many elements of n its kernel computes.
  std::int64_t times(NodeId n) const { return times_[static_cast<std::size_t>(n)]; }
  int rank(NodeId n) const { return rank_[static_cast<std::size_t>(n)]; }

  /// Merges the part that computes `e.producer` into the one of `e.consumer`, or says why not.
  std::optional<Reason> merge_along(const Edge& e);
  /// Merges two parts that read `source`, each element once and in one order, or says why not.
  std::optional<Reason> merge_siblings(int a, int b, NodeId source);
  /// Merges two parts over one domain, which read nothing of each other, or says why not.
  std::optional<Reason> merge_beside(int a, int b);
  /// Merges along `e` two parts that a pattern around a product has found, and of which only the rules about
  /// contractions say that they are two; false where another rule keeps them apart.
  [[nodiscard]] bool join_along(const Edge& e);
  /// Why not, without merging anything.
  struct Refused {
    Reason reason;
    Part merged;          ///< what would be one part, for Reason::kResources
    Edge because;         ///< the read that is in the way: the edge itself, or another one between the two parts
    std::string missing;  ///< for Reason::kNotImplemented, and for kNoGain where it is a matter of time
  };
  std::optional<Refused> refusal(const Edge& e);

  /// Whether calls may share a kernel from now on; else only what one call computes. At first as the options say.
  void merge_across_stages(bool allowed) { across_stages_ = allowed; }
  /// Whether two parts are of calls that may share a kernel.
  bool may_share(int a, int b) const;
  /// What the kernel of `part` is, which computes `nodes`.
  Pattern pattern_of(const Part& part, const std::vector<NodeId>& nodes) const;  // kernel_of_parts.cpp
  Pattern pattern_of(const Part& part) const { return pattern_of(part, part.nodes); }
  /// Whether one of the executors that are asked runs these parts as one kernel.
  bool is_run(Pattern pattern, const std::vector<int>& parts) const { return !why_no_kernel(pattern, parts); }
  /// Whether one of them has a kernel for it, where a plan of what is possible would have one anyway.
  bool has_kernel(Pattern pattern, const std::vector<int>& parts) const;
  bool is_for_cpu() const { return device_.is_cpu; }
  int most_waiting() const { return options_.most_waiting; }
  bool names_kernels() const { return options_.names_kernels(); }
  /// Whether a pattern around a product is run, whose parts read one another along `edges`; remembers what is missing.
  bool is_run(Pattern pattern, const std::vector<int>& parts, const std::vector<Edge>& edges);
  /// What was missing for a pattern that has the parts of `e` as one kernel; nullptr where there was no such pattern.
  const std::string* why_no_pattern(const Edge& e) const;
  /// Makes one part of two without asking the rules; false where a third part has to run between them.
  [[nodiscard]] bool unite(int a, int b);
  void mark_attention(int part) { parts_[static_cast<std::size_t>(part)].attention = true; }
  void defer(int part, std::vector<NodeId> maps) { parts_[static_cast<std::size_t>(part)].deferred = std::move(maps); }
  /// What neighbouring columns occupy on chip where they stay there between two sweeps.
  std::int64_t column_bytes(const Part& part) const;
  /// Arrays that the kernel of `part` reads: `sources`, a join with all its parts as one.
  std::ptrdiff_t inputs(const Part& part) const;

 private:
  struct Match {  ///< where the axes of both parts lie in the merged domain
    Extents domain;
    MovedAxes moved_a, moved_b;
  };
  struct Slot {                    ///< in `sequence_`, of a part that is made of two
    int place = 0;                 ///< that of one of them
    std::vector<int> before = {};  ///< parts that move there first: the other one needs them
  };
  struct Verdict {  ///< a reason against merging, or what the merged part is
    std::optional<Reason> reason;
    Match match = {};
    Part merged = {};
    Edge because = {};
    Slot slot = {};
    std::string missing = {};
  };

  WorkKind work_kind(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)].kind; }
  Axes read_span(NodeId n) const;
  Verdict match_edge(const Edge& e) const;  // match.cpp
  Verdict match_full(const Edge& e, const Cut& b, Axes varies) const;
  Verdict match_rows(const Edge& e, const Cut& b, Axes read, Axes varies) const;
  std::optional<Reason> kinds_allow(const Part& a, const Part& b, NodeId consumer) const;
  bool multiply_same_rows(const Part& a, const Part& b) const;
  NodeId contraction_of(const Part& part) const;
  bool takes_of_product(const Part& part) const;
  std::optional<Reason> named_pair_allowed(NodeId producer, NodeId consumer) const;
  Verdict judge(int a, int b, Verdict v);
  std::optional<Reason> edges_fit(int a, int b, Verdict& v) const;  ///< also says how v.merged sweeps
  bool rows_are_read(int p, const MovedAxes& moved, const Part& merged) const;
  std::vector<NodeId> nodes_of(const std::vector<int>& parts) const;
  int passes(int a, int b, const Part& merged) const;
  std::optional<std::string> why_no_kernel(Pattern pattern, const std::vector<int>& parts) const;
  std::optional<std::string> why_no_kernel(Executors asked, Pattern pattern, const std::vector<int>& parts) const;
  bool is_apart(const Executor* executor, const std::vector<int>& parts) const;
  bool is_anything_possible(const std::vector<int>& parts) const;
  std::optional<Reason> fits_device(const Part& merged) const;
  /// Whether the kernel computes what is of `part` as often as that of `part` alone.
  bool runs_alike(const Part& part, const Part& merged) const;  // computed_again.cpp, to computes_again
  void move_axes(int p, const MovedAxes& moved, const Part& merged);
  struct Computed {
    double us = 0;
    NodeId most = 0;  ///< of what is computed more often than now, what takes most
    std::int64_t times = 1;
  };
  Computed computed(const Part& as, const std::vector<NodeId>& nodes, const std::vector<Axes>& spans,
                    bool sweeps) const;
  double compute_us(int p, bool sweeps) const;
  double memory_us(const Part& part) const;
  bool sweeps_again(int a, int b, const Part& merged) const;
  std::optional<std::string> computes_again(int a, int b, const Verdict& v) const;
  std::vector<Edge> crossing_edges(int a, int b) const;
  Part merged_part(int a, int b, const Match& m) const;
  bool sweeps(int p, NodeId source) const;  ///< reads each element of source, in order, once per element of its domain
  bool is_read_by_only(int a, int b) const;
  bool reads_from(int a, int b) const;
  bool reads_part_of(int a, int b) const;
  std::optional<Slot> slot_for(int a, int b);
  void apply(int a, int b, Verdict v);
  void move_nodes(int a, int b, Part merged, const Slot& slot);

  const Graph& g_;
  const FoldedGraph& folded_;
  const Device& device_;
  const PlanOptions& options_;
  bool across_stages_ = true;
  std::vector<NodeId> order_;
  std::vector<int> rank_;     ///< by node
  std::vector<int> part_of_;  ///< by node, -1 for what is not computed
  std::vector<Part> parts_;
  std::vector<Axes> span_;           ///< by node
  std::vector<std::int64_t> times_;  ///< by node
  std::vector<NodeIds> readers_;     ///< by node, one entry per read
  std::vector<bool> is_output_;
  struct Missing {
    NodeId producer, consumer;
    std::string why;
  };
  std::vector<Missing> missing_;  ///< patterns that no executor runs
  PartOrder sequence_{0};         ///< no part reads what one behind it computes: so kernels never wait for each other
  std::vector<int> visited_;      ///< by part: the last search that came by
  int visit_ = 0;
};

}  // namespace kfusion
