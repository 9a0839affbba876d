// The state of one reverse pass, which the rules of nodes share.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "kfusion/grad/vjp.hpp"

namespace kfusion::grad {

class Backward {
 public:
  Backward(GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs, std::int64_t first_call);

  /// Adds to the cotangent of a node; g's shape broadcasts to the node's.
  void give(NodeId node, NodeId g);
  void run();
  /// The gradient of a node, in its shape; 0 where it got none.
  NodeId gradient(NodeId node);
  std::vector<LibraryAdjoint> take_calls() { return std::move(calls_); }

 private:
  /// A part of an array: what a slice took.
  struct Part {
    SliceAttributes slice;
    NodeId g;
  };
  struct Cotangent {
    std::optional<NodeId> g;
    std::vector<Part> parts;
  };

  const Node& node(NodeId id) const { return b_.graph()[id]; }
  bool wanted(NodeId id) const { return at(id) < wanted_.size() && wanted_[at(id)]; }
  bool is_input(NodeId id) const { return std::ranges::find(inputs_, id) != inputs_.end(); }
  std::optional<NodeId> transposed(NodeId id) const;
  std::optional<NodeId> whole(NodeId id);
  void add(std::optional<NodeId>& sum, NodeId g);

  void enter_stage(NodeId id);
  void leave_stage();

  void visit(NodeId id, NodeId g);
  void of_map(NodeId id, NodeId g);
  void of_reduction(NodeId id, NodeId g);
  void of_view(NodeId id, NodeId g);
  void of_join(NodeId id, NodeId g);
  void of_matmul(NodeId id, NodeId g);
  void of_conv2d(NodeId id, NodeId g);
  void of_gather(NodeId id, NodeId g);
  void of_library_call(NodeId id);
  void of_attention(NodeId id);
  void of_alternative(const LibraryAlternative& alternative, NodeId g);
  void by_rule(GraphBuilder::GradientRule rule);
  void by_cotangents(const GraphBuilder::GradientRule& rule, const NodeIds& given);
  std::optional<LibraryAlternative> alternative_of(NodeId result) const;
  void call_library(const Node& n, LibraryAdjoint adjoint, NodeIds arguments, std::string function, std::int64_t flops,
                    const AxisList& order = {});

  NodeId dilated(NodeId x, int axis, std::int64_t step);
  NodeId placed(const Part& part, const Extents& shape, int first_axis);
  std::optional<NodeId> joined(const std::vector<Part>& parts, const Extents& shape);
  void conv2d_of_torch(const Node& conv, NodeId g);
  NodeId conv2d_input(const Node& conv, NodeId w, NodeId g);
  NodeId conv2d_weight(const Node& conv, NodeId x, NodeId g);
  [[noreturn]] void refuse(NodeId id) const;

  GraphBuilder& b_;
  const NodeIds inputs_;
  std::vector<bool> wanted_;  // by node: depends on an input, and has a gradient
  std::map<NodeId, Cotangent> cotangents_;
  std::map<NodeId, std::map<int, NodeId>> of_results_;  // of a library_call: cotangents by the number of the result
  std::vector<LibraryAdjoint> calls_;
  std::int64_t first_call_;
  const NodeId start_;  // what comes before is the function's
  StageId stage_ = -1;  // of the forward nodes that are visited
};

}  // namespace kfusion::grad
