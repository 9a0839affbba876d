// A function's graph with that of its gradients behind it, and what each of its values costs a backward pass.
#pragma once
#include <set>
#include <vector>

#include "kfusion/grad/loose.hpp"
#include "kfusion/grad/min_cut.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/device.hpp"

namespace kfusion::grad {

/// Which values backward reads, of those that depend on no cotangent.
///
/// Costs are bytes at the bandwidth of a copy, in units of 1 / kUnits. Reading a value costs its bytes; keeping one
/// that is neither an argument nor a result costs them again, and a little more, so that nothing is kept for no gain;
/// half of that for results of calls and products, which many plans store anyway: of a product with a bias and a
/// residual the sum, which is stored in its place. Computing it again costs, beside what its arguments cost,
///   map, cast    the arithmetic's time, of which one part in kHidden shows: the rest hides behind loads
///   reduction    a load of what it reads: another sweep
///   gather       a load of its result
///   product      its FLOPs at the peak, loads of its arguments, a store and a load of its result
///   view         nothing
///   call         more than all else: it may be random, or of any length
///
/// Half numbers of rows (a softmax's sum) are kept only where backward does not compute again what they
/// are of: it may find other numbers (Loose), whose weights would not sum to 1.
class Joint {
 public:
  static constexpr double kUnits = 64, kHidden = 4;
  /// The cost of what must not be computed again: thousands of these are less than what no cut may have.
  static constexpr MinCut::Capacity kHuge = MinCut::kInfinite / 65536;

  /// `results`: of the function, in any dtype; `inputs`: those that gradients are wanted of.
  Joint(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs, const Device& device);

  struct Choice {
    std::vector<NodeId> kept;   ///< ascending, arguments too
    std::vector<NodeId> again;  ///< computed again, ascending
    double dearness = 1;
    MinCut::Capacity cost = 0;
    bool is_possible() const { return cost < MinCut::kInfinite; }
  };
  /// The cheapest, where all but storing costs only one part in `dearness`; `never` is not kept.
  Choice choose(double dearness = 1, NodeId never = -1) const;

  /// Whether a value is there anyway: an argument, or a result of the function that is what the function went on with.
  bool is_there(NodeId id) const;
  /// Which of the results a value is; -1: none.
  int result(NodeId id) const { return result_[at(id)]; }
  std::int64_t nbytes(NodeId id) const { return g_[id].nbytes(); }
  /// Bytes of the chosen values that are not there anyway.
  std::int64_t stored_bytes(const Choice& choice) const;

 private:
  /// What a cut must not do.
  struct Bounds {
    std::set<NodeId> keep, again;
  };
  /// Numbers of rows that are kept, and what they are of that is computed again.
  struct Clashes {
    std::set<NodeId> rows, values;
  };

  Choice cut(double dearness, const Bounds& never) const;
  Clashes clashes(const Choice& choice) const;
  Choice without_clashes(Choice choice, Bounds never, bool keeps_rows) const;
  void find_read(const std::vector<bool>& is_late, const NodeIds& gradients);
  void hide_insides(const Device& device);
  void find_inexact();
  void find_often_stored();
  bool is_of_input(NodeId id) const;
  const NodeIds& made_of(NodeId id) const;
  bool is_storable(NodeId id) const;
  double again(NodeId id, const Device& device) const;
  MinCut::Capacity store_cost(NodeId id, double dearness) const;

  Graph g_;
  NodeId forward_end_;         ///< nodes of the function itself come before
  std::vector<NodeId> same_;   ///< by node: the first one of its value
  std::vector<bool> is_read_;  ///< by backward
  std::vector<int> result_;    ///< by node: which of the results it is
  /// By node: a stored copy differs from what the function went on with. Half types: reductions and what is made of
  /// them alone, which kernels have in float32. Extremes that backward compares with a value that it computes again.
  std::vector<bool> is_inexact_;
  std::vector<bool> is_of_rows_;  ///< a reduction, or made of such alone
  Loose loose_;
  std::vector<bool> is_hidden_;        ///< within what a function of the library computes whole
  std::vector<bool> is_often_stored_;  ///< what a product's kernel, or a call, stores in many plans
  std::vector<NodeId> needed_;         ///< what is read, and what that is made of, ascending
  std::vector<int> index_;             ///< by node: where it stands in needed_
  std::vector<double> again_;          ///< by place in needed_
};

/// torch's function for what several nodes compute, where these make more than it reads and gives: the scores of
/// attention. Nothing of any other.
bool is_large_inside(const Graph& g, const LibraryAlternative& alternative);

}  // namespace kfusion::grad
