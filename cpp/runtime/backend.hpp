// What an executor is to plans that are made ready to run: it makes a step of each group that the planner gave it.
#pragma once
#include <memory>
#include <vector>

#include "kfusion/lower/attention.hpp"
#include "kfusion/lower/contraction.hpp"
#include "kfusion/room.hpp"
#include "runtime/each.hpp"
#include "runtime/executable.hpp"

namespace kfusion {

/// Where the values of one run lie: by slot, the address of element 0.
struct Frame {
  std::byte** slots;
  std::byte* workspace;      ///< of the step that runs
  const double* parameters;  ///< as the kernels number them
  int device;
  Stream stream;
  LibraryFunctions* library;
};

class ExecutableStep {
 public:
  virtual ~ExecutableStep() = default;
  /// Waits for what steps left to other threads. Called once, when all steps of a plan are made and before any runs.
  virtual void finish() {}
  virtual void run(const Frame& frame) const = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
  virtual bool runs_in_library() const { return false; }
  /// Whether loops that reduce read all that they need of an element before they store there, and nothing else reads
  /// it.
  virtual bool reads_first() const { return false; }
  /// Whether it lets the library make the output in that slot where there is none.
  virtual bool makes(int /*slot*/) const { return false; }
};
using StepPointer = std::unique_ptr<ExecutableStep>;

/// A group as loops, and the slots of its loads (then tables) and stores, in order.
struct Loops {
  Kernel kernel;
  std::vector<int> loads, stores;
};

/// A group around a product, and the slots of its factors and of its epilogue's loads (-1 for a product's elements) and
/// stores, in order.
struct Contracted {
  Contraction contraction;
  std::vector<int> left, right;  ///< by product
  std::vector<int> loads, stores;
};

/// Attention, and the slots of both contractions; the output's left factor has none.
struct Attended {
  Attention attention;
  Contracted scores, output;  ///< without their contractions
};

/// The addresses of operands.
class Addresses {
 public:
  Addresses(const std::vector<int>& slots, std::byte* const* all) : of_(slots.size()) {
    for (std::size_t i = 0; i < slots.size(); ++i) of_[i] = all[slots[i]];
  }
  std::byte* const* data() { return of_.data(); }

 private:
  Room<std::byte*, 16> of_;
};

/// A value as the graph has it.
struct Seen {
  int slot = 0;
  View view;                ///< without data
  std::int64_t offset = 0;  ///< of its first element, in bytes
  bool whole = false;       ///< all of the value in its slot, as it lies there
  bool kept = false;        ///< in the memory of the library that computes it

  View placed(const Frame& f) const {
    View v = view;
    v.data = f.slots[slot] ? f.slots[slot] + offset : nullptr;
    return v;
  }
};

/// A group that a step is to be made of. In which way a backend asks for its values is up to it: patterns that are
/// loops have results with any strides, which only the loops know.
class StepRequest {
 public:
  virtual const Plan& plan() const = 0;
  virtual const Group& group() const = 0;
  virtual Place place() const = 0;
  virtual bool aligned() const = 0;  ///< all arrays of the caller's begin at multiples of the memory's vector_bytes

  /// The group lowered, for a step that reads each element of a pointwise kernel before it writes it. Once a group.
  virtual Loops loops() = 0;
  /// The group around a product lowered, where why_no_contraction() gives no reason against it. Once a group.
  virtual Contracted contraction(BatchAxes axes = BatchAxes::kOne) = 0;
  /// The group around products beside one another lowered, where why_no_products_beside() gives no reason. Once a
  /// group.
  virtual std::vector<Contracted> contractions() = 0;
  /// The attention group lowered, where why_no_attention() gives no reason against it. Once a group.
  virtual Attended attention() = 0;
  /// What a node of the group reads, or stores. Throws ValueError for a float argument, whose value comes with a call.
  virtual Seen value(NodeId n) = 0;
  /// Where the group, of any pattern, stores a node: over the extents that it is computed in, those of 1 possibly left
  /// out.
  virtual Access stored(NodeId n) const = 0;

 protected:
  ~StepRequest() = default;
};

class Backend : public Executor {
 public:
  /// Makes the step of a group that it does not refuse. Throws DeviceError where the place cannot be used.
  virtual StepPointer make_step(StepRequest& request) const = 0;

  /// Makes a step that runs an elementwise kernel over many sets of arrays; nullptr: it has none.
  virtual EachPointer make_each(EachRequest) const { return nullptr; }

  /// Whether a result that other kernels read stays in memory of its own.
  virtual bool keeps(const Node&) const { return false; }

 protected:
  ~Backend() = default;
};

}  // namespace kfusion
