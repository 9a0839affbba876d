// One plan of a graph while it is made: parts that merge, then kernels, then the reasons why they are not fewer.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kfusion/plan/partition/duplicate.hpp"
#include "kfusion/plan/partition/partition.hpp"
#include "kfusion/plan/partition/reasons.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {

/// Where merging starts, and how far it goes.
enum class Scope : std::uint8_t {
  kEverything,   ///< any calls may share a kernel
  kCallsFirst,   ///< each call alone, then all: no merge moves more bytes, so nothing exceeds one kernel per call
  kWithinCalls,  ///< no calls share a kernel
};

/// Which values decide first which nodes share a kernel.
enum class Order : std::uint8_t {
  kForward,   ///< those that are read first; for each reader the largest
  kBackward,  ///< those that are read last
  kShared,    ///< those that several kernels read, then forward
};

/// Two readers of one value that are apart, for the report.
struct Neighbours {
  NodeId first = 0, second = 0, shared = 0;
};

class Planning {
 public:
  Planning(Graph g, const Device& device, const PlanOptions& options, Scope scope);
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  /// Copies go to the readers that they were made for.
  void merge(const std::vector<NodeId>& copies = {}, Order order = Order::kForward);

  std::optional<CopiedGraph> graph_with_copies() const { return with_copies(plan_.graph, partition_, plan_.folded); }

  /// Makes groups of the parts, and counts what they move.
  void finish();

  const Plan& plan() const { return plan_; }
  const PlanCost& cost() const { return cost_; }

  /// The finished plan.
  Plan take() { return std::move(plan_); }

  /// With the reasons why its kernels are not fewer.
  Plan take_with_refusals();

 private:
  void merge_kernels(Order order);
  void merge_with_readers(NodeId copy);
  Case make_case(NodeId producer, NodeId consumer, Reason reason) const;
  void refuse(const Case& c, std::string text);
  void refuse(const Case& c) { refuse(c, sentence(c)); }
  void refuse_inputs(NodeId n);
  void refuse_joins(NodeId n);
  bool replaces_kernels(const Case& c) const;
  Case case_of(const Edge& e);
  void refuse_neighbours(const Neighbours& n);

  const Device& device_;
  const PlanOptions options_;
  const Scope scope_;
  Plan plan_;
  Partition partition_;
  PlanCost cost_;
  std::vector<Neighbours> apart_;
};

/// A plan and what it moves.
class Counted {
 public:
  explicit Counted(std::unique_ptr<Planning> merged) : planning_(std::move(merged)) { planning_->finish(); }

  const Plan& plan() const { return planning_->plan(); }
  const PlanCost& cost() const { return planning_->cost(); }
  double us() const { return cost().total.price.predicted_us; }
  std::int64_t bytes() const { return cost().total.traffic.compulsory.total(); }
  bool runs() const { return std::ranges::all_of(plan().groups, &Group::executor); }

  /// More bytes, or more kernels.
  bool exceeds(const Counted& other) const;

  /// Less than another one of the same function: as measured, where all was in which the two differ.
  bool is_faster_than(const Counted& other) const;

  Plan take() && { return planning_->take(); }
  Plan take_with_refusals() && { return planning_->take_with_refusals(); }

 private:
  bool knows_what_differs_from(const Counted& other) const;

  std::unique_ptr<Planning> planning_;
};

}  // namespace kfusion
