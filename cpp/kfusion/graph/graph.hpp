// The graph that everything reads: calculator, planner, executors, reports.
//
// Nodes stand in an order in which each comes after its arguments. A graph is built through GraphBuilder (builder.hpp),
// which infers dtypes and shapes, or read from outside and then verified (verify.cpp); nothing else makes nodes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kfusion/dtype.hpp"
#include "kfusion/few.hpp"
#include "kfusion/ops/op.hpp"
#include "kfusion/view.hpp"

namespace kfusion {

using NodeId = std::int32_t;
using StageId = std::int32_t;
using Extents = Few<std::int64_t, 4>;
using NodeIds = Few<NodeId, 4>;
using AxisList = Few<int, 4>;

/// A number of a node, a step or an axis, as an index.
inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Elements of an array of these extents.
std::int64_t product(const Extents& e);

/// Whose promotion rules a value follows: bfloat16, and integers with floats, differ.
enum class Library : std::uint8_t { kNumpy, kTorch };

/// The attributes of one node; which alternative goes with which op is a rule of verify.cpp.
struct InputAttributes {
  std::string name;
  bool captured = false;  ///< an array that the function named, not one of its parameters
  Extents strides;        ///< in elements, as the caller's array lies; empty: C order
  bool donated =
      false;  ///< of a run, no field of the graph's text: nobody reads it afterwards, its memory is the run's
  bool operator==(const InputAttributes&) const = default;
};
struct ConstantAttributes {
  double value = 0;          ///< for float dtypes (already rounded to their precision()) and bool (0 or 1)
  std::int64_t integer = 0;  ///< for int32 and int64
  bool weak = false;         ///< a Python scalar: takes the dtype of what it meets; no node reads one
  int parameter = -1;        ///< number of the float argument that `value` came from: another one may come when it runs
  bool wide = false;         ///< of a half type, and kept in float32, in which half types are computed
  bool operator==(const ConstantAttributes& other) const;  ///< bit for bit: 0 is not -0, NaN is NaN
};
struct IotaAttributes {
  int axis = 0;
  bool operator==(const IotaAttributes&) const = default;
};
struct ReduceAttributes {
  AxisList axes;  ///< ascending, >= 0, without repetition
  bool keepdims = false;
  bool whole = false;  ///< axis=None: every axis, of an array that is not seen as rows
  bool operator==(const ReduceAttributes&) const = default;
};
struct TransposeAttributes {
  AxisList axes;  ///< axis i of the result is axis axes[i] of the argument
  bool operator==(const TransposeAttributes&) const = default;
};
struct SliceAttributes {
  Extents start, step;  ///< one per axis; the node's shape is the number of elements taken
  bool operator==(const SliceAttributes&) const = default;
};
struct Conv2dAttributes {
  std::int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
  bool operator==(const Conv2dAttributes&) const = default;
};
struct TakeAttributes {
  int axis = 0;
  bool nonnegative = false;  ///< a negative index is an error; else it counts from the end
  bool operator==(const TakeAttributes&) const = default;
};
struct LibraryCallAttributes {
  std::string function;     ///< "torch.sort", for people
  std::int64_t number = 0;  ///< of the function among those that the trace hands over
  std::int64_t flops = 0;   ///< multiplications and additions of its products; 0 where they are not known
  /// What it takes and what kernels would, as predicted, where it stands in their place; else -1.
  std::int64_t library_ns = -1, kernels_ns = -1;
  bool operator==(const LibraryCallAttributes&) const = default;
};
struct LibraryResultAttributes {
  int index = 1;
  bool operator==(const LibraryResultAttributes&) const = default;
};
struct JoinAttributes {
  int axis = 0;
  bool operator==(const JoinAttributes&) const = default;
};
struct PartialAttributes {
  int axes = 1;  ///< number of leading axes that are summed
  std::int64_t parts =
      1;  ///< part p has the elements from p * n / parts to (p + 1) * n / parts of the n that they have
  bool operator==(const PartialAttributes&) const = default;
};
struct CastAttributes {
  /// The caller asked for the dtype: a value that is cast to a half type is rounded to it wherever it is read. Else the
  /// cast says how a result is stored, and the kernel that computes it goes on with what it has.
  bool rounds = false;
  bool operator==(const CastAttributes&) const = default;
};
/// std::monostate: maps, reshape, broadcast and matmul: dtype and shape say all.
using Attributes =
    std::variant<std::monostate, InputAttributes, ConstantAttributes, IotaAttributes, ReduceAttributes,
                 TransposeAttributes, SliceAttributes, Conv2dAttributes, TakeAttributes, LibraryCallAttributes,
                 LibraryResultAttributes, CastAttributes, JoinAttributes, PartialAttributes>;

struct Node {
  Op op{};
  DType dtype = DType::kFloat32;
  Extents shape;
  NodeIds arguments;
  Attributes attributes;
  StageId stage = -1;  ///< sources belong to none
  Library library = Library::kNumpy;
  Place place;
  bool is_gradient = false;  ///< of something, or made of one: what a backward pass computes. For reports only

  std::int64_t size() const;    ///< elements; a graph holds no node whose bytes exceed 2^63 - 1
  std::int64_t nbytes() const;  ///< size() * item_bytes(dtype)
};

/// Constants and iota: made in the kernel that reads them, so no kernel loads them.
bool is_free(const Node& n);

/// A map or a cast: each element of the result from one element of each argument.
inline bool is_elementwise(const Node& n) { return kind(n.op) == OpKind::kMap || kind(n.op) == OpKind::kCast; }

/// Whether the nodes have one value: one operation on the same arguments, whatever the stage.
bool same_value(const Node& a, const Node& b);

/// One user-level call: what runs as one kernel when nothing is fused.
struct Stage {
  std::string name;    ///< "relu", "softmax", "var", ...
  std::string source;  ///< "file.py:12: y = kf.relu(x)", or empty
};

struct Output {
  std::string name;  ///< "0", "1", ... for a tuple, the keys of a dict, "" for a single result
  NodeId node = 0;
  bool operator==(const Output&) const = default;
};

/// A function of the library for what several nodes compute: it may be one kernel where they are several.
struct LibraryAlternative {
  LibraryCallAttributes call;
  NodeIds arguments;
  NodeId result = 0;
  StageId first_stage = 0, end_stage = 0;  ///< of the nodes between
  AxisList order;                          ///< of the result's axes in memory, as the call gives it; empty: C order
  bool operator==(const LibraryAlternative&) const = default;
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Stage> stages;
  std::vector<Output> outputs;
  std::vector<LibraryAlternative> alternatives;  ///< of a graph as it was traced only; not written to JSON

  const Node& operator[](NodeId id) const { return nodes[static_cast<std::size_t>(id)]; }
  template <class T>
  const T& attributes(NodeId id) const {
    return std::get<T>((*this)[id].attributes);
  }
  /// Compares all but the alternatives. Stages are compared by name: their sources may differ.
  bool operator==(const Graph& other) const;
};

/// A graph from outside holds no more than this.
inline constexpr std::size_t kMaxNodes = 1'000'000;
inline constexpr std::size_t kMaxTextBytes = 10'000;  ///< of a name or a source

/// Equal graphs have equal hashes, in every process.
std::uint64_t hash(const Graph& g);
/// Nodes for which same_value() holds have equal hashes.
std::uint64_t hash(const Node& n);
/// Hashes what a node does, whatever it reads.
std::uint64_t hash_alone(const Node& n);

/// The readable form, one node a line, for example
///   %2: float32[4096, 1024] = relu(%0)                      # relu
std::string to_text(const Graph& g);

/// Every rule that a graph obeys, one per line of verify.cpp; throws ValueError naming the node and the rule.
void verify(const Graph& g);

/// Removes nodes that no output needs and makes equal nodes one (arguments of commutative ops in any order). Inputs
/// stay, used or not. Stages that lose all nodes go. Unless `across_stages`, equal nodes of different stages stay
/// apart: a kernel per stage computes them in each.
Graph simplify(Graph g, bool across_stages = true);

}  // namespace kfusion
