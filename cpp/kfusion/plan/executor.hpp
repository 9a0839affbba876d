// Executors run the kernels of a plan. The planner knows them by what they say: what they run, what they refuse and
// why, and at what price.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/device.hpp"
#include "kfusion/plan/pattern.hpp"
#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

struct Group;
struct Plan;
struct Price;

/// A kernel that is or could be: what executors are asked about.
struct Candidate {
  const Graph& graph;
  const FoldedGraph& folded;
  Pattern pattern;
  const std::vector<NodeId>& nodes;   ///< that it computes, in order
  const std::vector<NodeId>& stores;  ///< those of them that it stores

  bool computes(NodeId n) const { return std::ranges::binary_search(nodes, n); }
};

/// A kernel of a plan.
Candidate candidate_of(const Plan& plan, const Group& group);

/// Computes some patterns on some devices. Executors live as long as the process, whose threads may ask at any time.
class Executor {
 public:
  virtual std::string_view name() const = 0;

  /// Whether it has kernels of this pattern for such a device at all.
  virtual bool has(Pattern pattern, const Device& device) const = 0;

  /// What it does not run of a pattern that it has, as a clause about it ("computes a matmul alone"); nothing where it
  /// runs the kernel. Kernels grow by one operation at a time: who runs one runs it without its last operation too.
  virtual std::optional<std::string> refusal(const Candidate&, const Device&) const { return std::nullopt; }

  /// What the kernel costs. `roofline`: by its bytes and operations.
  virtual Price price(const Plan& plan, const Group& group, const Price& roofline, const Device& device) const;

  /// Whether images that it stores lie with their channels innermost, unless the caller wants them otherwise.
  virtual bool lays_channels_last() const { return false; }

  /// How it runs the kernel, for people: "tiles of 256 x 192 by clusters of 2 blocks"; empty where there is no choice.
  virtual std::string how(const Plan&, const Group&, const Device&) const { return {}; }

 protected:
  ~Executor() = default;
};

/// Executors in order of preference; ties in price go to the first.
using Executors = std::vector<const Executor*>;

/// The executor that has every pattern everywhere, and no kernels: a plan that also asks it shows what is possible, and
/// may not run.
const Executor& anyone();

/// Why none of `asked` runs the kernel, in one clause; nothing where one of them does.
std::optional<std::string> why_no_executor(const Executors& asked, const Candidate& kernel, const Device& device);

/// Those of `asked` that run the kernel.
Executors able_executors(const Executors& asked, const Candidate& kernel, const Device& device);

}  // namespace kfusion
