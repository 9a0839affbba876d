// What a signature's calls run: an executable, where its inputs come from, and what its results are.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "python/fuse/scalars.hpp"
#include "python/fuse/signature.hpp"
#include "python/fuse/targets.hpp"
#include "python/fuse/watched.hpp"
#include "runtime/executable.hpp"

namespace kfusion {
class Each;  // runtime/each.hpp
}

namespace kfusion::fuse {

/// A plan ready to run, shared by all functions that have it.
struct Compiled {
  Device device;
  Executable executable;
  std::vector<View> results;  ///< their layouts, without data
};

/// What `graph` is compiled to by options of a plan to run, made once for all calls that want the same. `outs`: for
/// each output the array to write it into; nullptr, or none at all: the output lies as the inputs do. Called with the
/// GIL, works without.
std::shared_ptr<const Compiled> compiled(const Graph& graph, const Device& device, const PlanOptions& options,
                                         bool aligned, std::span<const Array* const> outs);

/// Where an input of the graph comes from.
struct Source {
  int argument = -1;  ///< the number of an array among the arguments, or
  py::object held;    ///< an array that the function named; a weak reference where the signature names it as well
  std::vector<std::uint64_t> words;  ///< of that array when it was traced: an array can change its own shape

  py::object array() const;
};

struct Entry {
  std::shared_ptr<const Compiled> compiled;  ///< nullptr where there is:
  std::shared_ptr<const Each> each;          ///< a kernel for many sets of arguments
  bool gives_none = false;                   ///< of such a function: it returns None
  std::vector<Source> sources;
  Scalars scalars;
  std::vector<Watched> watched;
  std::vector<py::object> made_of;  ///< weak references to tensors of which the trace may have computed constants
  bool is_single = false;           ///< the function returns its only output
  std::vector<py::object> calls;    ///< the library's functions, as the graph's library_call nodes number them
  py::object alike;                 ///< what Python knows of calls with other extents
  py::object fill;                  ///< else: from the list of outputs to what the function returns
  std::vector<Target> targets;      ///< where the last outputs go; the others are results

  std::size_t results() const { return compiled->results.size() - targets.size(); }
};

/// The arrays of the graph's inputs for one call, in order.
class Inputs {
 public:
  Inputs(Call& call, const Entry& entry, Signature& s);

  /// Whether the arrays that the function named, and tensors that the trace depends on, are there and as they were
  /// traced; else they are not all here.
  bool unchanged() const { return unchanged_; }
  const std::pmr::vector<const Array*>& all() const { return all_; }
  const Array* first() const { return all_.empty() ? nullptr : all_[0]; }
  const std::vector<py::object>& calls() const { return calls_; }

 private:
  std::pmr::vector<py::object> objects_;
  std::pmr::vector<Array> held_;
  std::pmr::vector<const Array*> all_;
  const std::vector<py::object>& calls_;
  bool unchanged_;
};

/// Throws ValueError where an array is not what the graph was traced for: what Python's attributes say of an array and
/// what it exports are two answers.
void require_as_traced(const Call& call, const Graph& graph, const Inputs& inputs);

using Results = std::pmr::vector<arrays::Result>;
using Objects = std::pmr::vector<py::object>;

/// Where one call's outputs go: results to `outs`, or to fresh arrays where there are none.
struct Goals {
  const Arrays& outs;
  const Arrays& targets;
};

/// Runs the kernels and returns the results. What goes into arguments is there afterwards.
Results compute(Call& call, const Entry& entry, const Inputs& inputs, const double* parameters, const Goals& goals,
                std::pmr::memory_resource* memory);
/// The objects for the caller; NumPy's without axes are scalars.
Objects hand_out(Results& results, const Inputs& inputs, std::pmr::memory_resource* memory);

/// Throws where `outs` are not what the results can be written to.
void check_outs(const Call& call, const Entry& entry, const Inputs& inputs, const Goals& goals);
/// Whether kernels may write straight to `outs`: nothing is overwritten before it is read.
bool can_write(const Compiled& c, const Inputs& inputs, const Arrays& outs);
/// The kernel of to = from.
std::shared_ptr<const Compiled> copying(const Device& device, const View& from, const Array& to);
/// to = from.
void copy_into(Call& call, const Device& device, const View& from, const Array& to);

}  // namespace kfusion::fuse
