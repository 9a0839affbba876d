// Makes graphs: infers dtype and shape, inserts the casts that promotion asks for, remembers stages.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Slice of one axis as Python gives it, after None is resolved by the caller's language: start, stop, step of
/// `range(start, stop, step)` (stop = -1 is before the first element, not the last).
struct AxisSlice {
  std::int64_t start = 0, stop = 0, step = 1;
};

/// Every function throws ValueError (shapes, values), TypeError (dtypes) or std::overflow_error (a Python integer that
/// does not fit) with a message that starts with the op's name, e.g. "add: operands could not be broadcast together
/// with shapes (3,) (4,)"; nothing is added to the graph then.
class GraphBuilder {
 public:
  GraphBuilder() = default;
  /// Goes on where `graph`, a valid one, ends.
  explicit GraphBuilder(Graph graph) : graph_(std::move(graph)) {}

  /// `strides` in elements, empty for C order.
  NodeId input(std::string name, Extents shape, DType dtype, Library library, Place place, bool captured,
               Extents strides = {});

  /// Python scalars are weak: they take the dtype of what they meet (NumPy 2, NEP 50; torch's rule for torch's values).
  NodeId weak_bool(bool value);
  NodeId weak_int(std::int64_t value);
  /// `parameter`: the number of the float argument that it is, up to kMaxDims - 1; -1 for one that stays as it is.
  NodeId weak_float(double value, int parameter = -1);
  /// The int64 that a float argument is.
  NodeId integer_parameter(int parameter);
  /// A float without axes; of a half type it is wide.
  NodeId constant(double value, DType dtype);
  /// 0, 1, 2, ... along `axis` of an array of extents `shape`.
  NodeId iota(Extents shape, int axis, DType dtype, Library library);

  /// A row of KF_MAP: promotes, casts, broadcasts.
  NodeId map(Op op, NodeIds arguments);
  /// Converts x; a constant becomes a constant of that dtype, no longer weak. Outside of any stage it rounds
  /// (CastAttributes), within one where `rounds`.
  NodeId cast(NodeId x, DType dtype, bool rounds = false);
  /// `axes` empty optional: axis=None, the whole array. Axes may be negative. Over no axes: a cast.
  NodeId reduce(Op op, NodeId x, std::optional<AxisList> axes, bool keepdims);

  NodeId transpose(NodeId x, AxisList axes);
  NodeId reshape(NodeId x, Extents shape);  ///< one extent may be -1
  NodeId slice(NodeId x, std::vector<AxisSlice> slices);
  NodeId broadcast(NodeId x, Extents shape);

  NodeId matmul(NodeId a, NodeId b);  ///< NumPy's rules for 1-D arguments and leading axes
  NodeId conv2d(NodeId x, NodeId w, Conv2dAttributes a);
  NodeId take(NodeId x, NodeId indices, int axis, bool nonnegative = false);
  /// x and indices have as many axes; all but `axis` broadcast.
  NodeId take_along_axis(NodeId x, NodeId indices, int axis, bool nonnegative = false);
  /// Joins at least one part, all of one shape but for `axis`. Promotes and casts as a map does.
  NodeId concatenate(NodeIds parts, int axis);

  struct ResultType {
    DType dtype;
    Extents shape;
  };
  /// What a function of the array library computes of `arguments`, of which there is at least one: a node for each
  /// result.
  std::vector<NodeId> library_call(LibraryCallAttributes call, NodeIds arguments,
                                   const std::vector<ResultType>& results);

  /// Says that `call` computes `result`, too, whose nodes stand in the stages from `first_stage` on. It gives the axes
  /// in that `order`, where there is one.
  void library_alternative(LibraryCallAttributes call, NodeIds arguments, NodeId result, StageId first_stage,
                           AxisList order = {});

  /// Nodes read what stands at the same place in `by`, where they have read one of `nodes`. Those come before all
  /// readers; alternatives whose result is replaced go.
  void replace(const NodeIds& nodes, const NodeIds& by);

  /// Says of an input that nobody reads it after a run, which may use its memory.
  void donate(NodeId input);

  /// Says that gradients take x for a constant.
  void stop_gradient(NodeId x);
  bool is_stopped(NodeId x) const { return at(x) < stopped_.size() && stopped_[at(x)]; }

  /// What the gradients of nodes are, in the place of those of what computes them.
  struct GradientRule {
    NodeIds results;     ///< floats, in ascending order
    NodeIds arguments;   ///< by which they have gradients
    NodeIds cotangents;  ///< nodes like the results, which stand for their gradients in what follows
    NodeIds gradients;   ///< without cotangents: what that of the one result, broadcast to each, is multiplied with
    LibraryCallAttributes call;  ///< where there are none, the library's function whose adjoint gives them
  };
  void set_gradients(GradientRule rule);
  /// None: those of what computes it.
  const GradientRule* gradients_of(NodeId result) const;
  /// A node of a valid graph, of other arguments, which have the dtypes and as many axes as its own.
  NodeId again(Node node, NodeIds arguments);

  /// Until `end_gradients`, what is made of `seeds` is a gradient, as always what is made of a gradient.
  void begin_gradients(NodeIds seeds) { seeds_ = std::move(seeds); }
  void end_gradients() { seeds_.clear(); }
  /// Says that x is one.
  void set_gradient(NodeId x) { graph_.nodes[at(x)].is_gradient = true; }

  /// Nodes made until the matching end belong to this stage. Stages do not nest: within one, begin counts only, and the
  /// outermost name holds. Without an open stage each call makes its own, named after the op.
  void begin_stage(std::string name, std::string source);
  void end_stage();
  /// The source line of nodes made outside any stage.
  void set_source(std::string source);

  void set_outputs(std::vector<Output> outputs);

  const Graph& graph() const { return graph_; }

 private:
  class Call;  // one call of a function above

  const Node& argument(Op reader, NodeId id) const;
  NodeId add(Node n);
  NodeId add_source(Node n);
  NodeId add_view(Op op, NodeId x, Extents shape, Attributes attributes);
  void require_indices(Op op, NodeId indices) const;
  NodeId add_take(Op op, NodeId x, NodeId indices, TakeAttributes attributes);
  NodeId strong(NodeId x);
  bool is_of_gradient(const Node& n) const;
  NodeId converted(NodeId x, DType dtype, bool wide = false);

  Graph graph_;
  std::vector<bool> stopped_;  // by node, as far as one is
  std::vector<GradientRule> rules_;
  std::vector<int> rule_of_;  // by node, as far as one has any; -1: none
  NodeIds seeds_;             // what gradients are made of
  StageId stage_ = -1;        // of the open stage, once it has a node
  Stage open_;
  int depth_ = 0;
  std::string source_;
};

}  // namespace kfusion
