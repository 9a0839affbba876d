// A group of a plan as loops: what the CPU executor runs and the CUDA generator prints. Nothing here is specific to
// either; extents are numbers, but nothing that a generator prints need depend on them.
//
//   for each row (a point of `kept`):                 one row where nothing is kept
//     for each sweep: for each element (a point of `reduced`): the element steps of that sweep, its reductions
//     the row steps in between and after
//
// A pointwise kernel reduces nothing: `reduced` is empty and every step is an element step of the points of `kept`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfusion/plan/names.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/positions.hpp"

namespace kfusion {

/// How often a value exists: once per row, or once per element of the domain.
enum class Level : std::uint8_t { kRow, kElement };

enum class StepKind : std::uint8_t { kLoad, kConstant, kIota, kMap, kCast, kReduce, kTake };

/// What is known of a step beyond its op: idioms, which idioms.hpp finds once for all that run or print kernels. They
/// say what may be done; an executor chooses.
struct Idioms {
  bool quick = false;          ///< a quick version of the function will do: half types do not show its error (kQuick of
                               ///< ops.def), it is computed once a row (kQuickPerRow), or it is a weight
  bool weight = false;         ///< exp(x - a value of its row), x of a half type and computed as float32: a softmax's,
                               ///< which need be no better than x
  bool row_quotient = false;   ///< elements by argument 1, a value of their row: products with its reciprocal do it
  bool divisor = false;        ///< a value of a row that row quotients divide by
  bool quick_divisor = false;  ///< no user shows the error of the product with its reciprocal (half types, weights)
  bool quick_quotient = false;  ///< division by a constant, likewise, whose result no exact function reads
  bool random_block = false;    ///< philox of one stream and key for all elements of a row: neighbours are words of one
                                ///< block
  bool products[2] = {};  ///< of a sum or difference of a half type: which arguments are products that nothing else
                          ///< uses. With one of them it may be rounded once (fma)
  int tanh = -1;          ///< 1 + tanh(x) of a half type: which argument tanh is; 2 / (1 + exp(-2 x)) is as good
  int place = -1;         ///< place == position: which argument is the place, an iota along the row; the other one
                          ///< is an integer of the row
};

/// One value. Half types are held as float32: a step whose dtype is a half type gives a float32 that is not rounded to
/// it, but for loads (exact), casts (rounded to the type) and stores (rounded).
struct Step {
  StepKind kind = StepKind::kLoad;
  Op op{};                        ///< kMap and kReduce: the row of ops.def
  DType dtype = DType::kFloat32;  ///< of the value, as the graph has it
  DType from = DType::kFloat32;   ///< kMap, kReduce, kCast, kTake: of the argument (of where: of the last two)
  Level level = Level::kElement;
  std::vector<int>
      arguments;        ///< earlier steps; a reduction's can be a row's, taken once per element. kTake: the index
  int index = -1;       ///< kLoad: of Kernel::loads; kConstant: of constants; kIota: of iotas; kTake: of tables
  int pair = -1;        ///< kReduce: of Kernel::pairs, the last that it belongs to
  NodeId node = -1;     ///< of the graph, for names
  std::string label{};  ///< "softmax.exp", for people; may be empty
  Idioms is{};
};

/// Where the elements of a value lie, from the axes of a kernel: element `offset` + the sum of index x stride.
struct Operand {
  NodeId node = 0;  ///< an input of the graph, or a value that a kernel stores
  DType dtype = DType::kFloat32;
  Extents kept, reduced;  ///< strides in elements along Kernel::kept and Kernel::reduced; 0 where it does not vary
  std::int64_t offset = 0;
  std::string label{};  ///< the value's name, for people; may be empty

  bool per_row() const;  ///< it does not vary along the reduced axes
};

/// An array of which a step takes elements at positions that another step gives. They lie `stride` elements apart from
/// where the operand says. Nothing is read at an index that has no position.
struct Table {
  Operand from;
  std::int64_t stride = 0;
  Positions positions;
  int axis = 0;          ///< of the array as its function sees it, for messages
  std::string function;  ///< whose index it is, for messages
};

/// A scalar of the graph. Executors pass it at run time, so that another value needs no other kernel.
struct Constant {
  DType dtype = DType::kFloat32;
  double value = 0;
  std::int64_t integer = 0;  ///< for int32 and int64
  int parameter = -1;        ///< index of the float argument that gives the value at run time; -1: `value`
  bool wide = false;         ///< as in ConstantAttributes
};

struct Store {
  int step = 0;
  Operand to;  ///< a row step can be stored to every element: the strides say
  /// Where this is not 0, the value is not stored, but summed over rows. Each of so many parts of the rows has a row of
  /// sums, which begins at p * Kernel::cols(); the executor chooses which rows are part p. `to` does not vary along the
  /// rows. The kernel is one of rows (kRows), also where columns are contiguous, or around a product (contraction.hpp),
  /// whose columns they are of: of whole rows of tiles, of a value that another store has.
  std::int64_t parts = 0;
};

/// Two reductions of a row, the second one sweep later, that need no second reading where a row goes by in chunks.
struct Pair {
  enum class Kind : std::uint8_t {
    kCentred,  ///< second = mean or sum of (v - first)^2, first = mean of v: Chan's formula merges chunks
    kShifted,  ///< second = sum of exp(v - first), first = max of v: chunks are scaled by exp(max - new max)
    kFound     ///< second = min of the positions where v is first or NaN, first = max or min of v: the better chunk's.
               ///< Around products only: argument 1 of second's argument is the position
  };
  Kind kind = Kind::kCentred;
  int first = 0, second = 0;  ///< steps
};

std::string_view name(Pair::Kind k);  ///< "centred", ...

/// A sum of where(place == position, value, otherwise) over a row, as a loss by class numbers has. Steps.
struct Pick {
  int reduction = 0;
  int equal = 0;      ///< Idioms::place of it
  int value = 0;      ///< of elements
  int otherwise = 0;  ///< a constant: where it is 0, all but one element add nothing
};

/// The smallest of where(x == number, place, beyond) over a row, as argmax has it. Steps.
struct Search {
  int reduction = 0;
  int x = 0;         ///< of elements
  int number = 0;    ///< of the row
  int place = 0;     ///< an iota
  int beyond = 0;    ///< a constant above all places
  bool nan = false;  ///< or where x is no number
};

/// Exponentials that the second reduction of a pair kShifted sums and that later sweeps use, which know x by nothing
/// else: they can be kept in its place. Steps.
struct Exponentials {
  int pair = 0;                        ///< of Kernel::pairs
  int exp = 0, difference = 0, x = 0;  ///< exp(x - the pair's first)
  int divisor = -1;                    ///< by which later sweeps divide them, if that is all that they are used for
};

/// When the values of a kernel are known: in which sweep over the elements of a row, or between which (schedule.hpp).
struct Schedule {
  std::vector<int> ready;   ///< by step: the first sweep whose elements can use it. An element's value is computed in
                            ///< that sweep or later ones, a row's before it, a reduction in the sweep before it
  std::vector<int> stored;  ///< by store: the sweep that stores elements; -1 for what is stored once per row
  int sweeps = 1;           ///< over a row that stays on chip; the last one may only store
};

struct Kernel {
  std::string name;                    ///< an identifier, from the user's calls: "relu_layernorm"
  Pattern kind = Pattern::kPointwise;  ///< kPointwise, kRows, kColumns or kFullReduction
  /// Without extents of 1, neighbours merged where all operands allow it, in the order of memory (of stores first, then
  /// of what is read most): the last axis of `reduced` (kRows, kFullReduction) or of `kept` (kPointwise, kColumns) is
  /// the one to vectorise. kFullReduction: `kept` is empty and `separate` is one sweep.
  Extents kept, reduced;
  std::vector<Operand> loads, iotas;  ///< an iota's value is its operand's element number
  std::vector<Table> tables;          ///< their addresses come after those of `loads`
  std::vector<Constant> constants;
  std::vector<Step> steps;  ///< each after its arguments
  std::vector<Store> stores;
  std::vector<Pair> pairs;
  Schedule separate, paired;  ///< every reduction in a sweep of its own; the second of a pair in the sweep of its first
  bool rough = false;         ///< results become weights of a half type: what is float32 need be no better
  std::vector<Pick> picks;    ///< these three as Step::is
  std::vector<Search> searches;
  std::vector<Exponentials> exponentials;

  const Step& step(int i) const { return steps[at(i)]; }
  std::int64_t rows() const;   ///< points of `kept`
  std::int64_t cols() const;   ///< points of `reduced`; 1 where nothing is reduced
  std::int64_t parts() const;  ///< of the rows, whose sums it stores; 0 where it stores none
  std::int64_t bytes() const;  ///< that it reads and writes, each element once
};

/// How the caller's arrays for results lie: strides in elements along each output's axes, by output of the graph; C
/// order of what is computed where empty.
using OutputStrides = std::vector<Extents>;

/// The strides of outputs that cannot lie as the caller wishes, because another kernel or the array library reads or
/// writes them too, or strides cannot express it. Empty for those that can have any.
OutputStrides required_strides(const Plan& plan);

/// Whether output `i`, which may have any strides, lies best with its channels innermost: a convolution stores it whose
/// executor prefers that, and the caller has images or weights that lie so.
bool lies_channels_last(const Plan& plan, std::size_t i);

struct Contraction;  // contraction.hpp
enum class BatchAxes : std::uint8_t;
struct Attention;  // attention.hpp
struct Space;      // space.hpp
struct Strided;
class Steps;  // kernel_steps.hpp

/// The groups of a plan, one that is to run, as loops. What all of them need is found once.
class Lowering {
 public:
  explicit Lowering(const Plan& plan, OutputStrides outputs = {});

  /// Lowers group `group`. Throws std::logic_error where it is no loops.
  Kernel kernel(int group) const;

  /// Lowers a group around a product (contraction.hpp). Throws std::logic_error where why_no_contraction() says why it
  /// is none.
  Contraction contraction(int group, BatchAxes axes = {}) const;

  /// Lowers a group around one product or several beside one another (beside.hpp). Throws std::logic_error where
  /// why_no_products_beside() says why it is none.
  std::vector<Contraction> contractions(int group) const;

  /// Lowers a group that is attention. Throws std::logic_error where why_no_attention() says why it is none that is
  /// lowered.
  Attention attention(int group) const;

  /// Where a value lies that a group stores, in the C order of what it is computed in.
  Access stored(NodeId n) const;

 private:
  Contraction contraction(const Group& group, BatchAxes axes) const;
  std::string name_of(const Group& group) const;
  /// All steps of the group, and where its stores lie. Cuts `space`, which `steps` are of, where strides change.
  std::vector<Strided> add_steps(const Group& group, Space& space, Steps& steps, Kernel& k) const;
  void set_labels(Kernel& k) const;

  const Plan& plan_;
  const OutputStrides outputs_;
  const Labels labels_;
  const std::vector<std::string> values_;  ///< the names of nodes
  const std::vector<int> output_of_;       ///< by node, see outputs.hpp
};

/// One step a line, for people and tests.
std::string to_text(const Kernel& k, const Graph& g);

}  // namespace kfusion
