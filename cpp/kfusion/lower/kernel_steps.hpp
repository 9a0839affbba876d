// The steps of a kernel: one for each node of the group, loads and constants where they are first used.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kfusion/lower/space.hpp"

namespace kfusion {

class Steps {
 public:
  /// Adds to the steps, constants, tables (but for their operands) and pairs of `k`.
  Steps(const Plan& plan, const Group& group, const Space& space, Kernel& k);

  void add_all();

  int step_of(NodeId n) const { return step_.at(n); }
  const std::vector<Strided>& loads() const { return loads_.all; }
  const std::vector<Strided>& iotas() const { return iotas_.all; }
  const std::vector<Strided>& tables() const { return tables_; }

 private:
  struct Operands {
    std::vector<Strided> all;
    std::vector<int> steps;  ///< by entry of `all`
  };

  const Work& work(NodeId n) const { return plan_.folded.work[static_cast<std::size_t>(n)]; }

  int add_node(NodeId n);
  int add_map(NodeId n);
  int add_take(NodeId n);
  int add_pick(NodeId n, int element);
  bool is_around_product() const;
  std::int64_t extent_of_row() const;
  Extents strides_in_row(std::int64_t stride) const;
  int place_in_row(NodeId value);
  int element_of_row(const Access& from);
  int known_positions(int index, const Positions& positions);
  int add_products(NodeId n, int power);
  int add_row_map(NodeId n);
  int add_before_deferred(NodeId reduction);
  int add_reduction(NodeId n);
  void add_pair(NodeId reduction, int step);
  int argument(Axes span, const Access& a);
  int as_read(NodeId n);
  int cast(DType to, DType from, int step);
  int unstored(int step) const;
  int operand(StepKind kind, Operands& among, const Strided& operand);
  int constant(NodeId n);
  int integer(std::int64_t value, DType dtype);
  int real(double value, DType dtype);
  int map(Op op, DType dtype, DType from, std::vector<int> arguments);
  int push(Step s);

  const Plan& plan_;
  const Graph& g_;
  const Group& group_;
  const Space& space_;
  Kernel& k_;
  Operands loads_, iotas_;
  std::vector<Strided> tables_;
  std::unordered_map<NodeId, int> step_;  ///< by node of the group, and by constant
  /// Half values that go on rounded: what others read has to be what sums and wider values were made of.
  std::unordered_set<NodeId> as_stored_;
  std::unordered_map<NodeId, int> rounded_;  ///< by node of these: the step that rounds it
};

}  // namespace kfusion
