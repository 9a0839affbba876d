// One elementwise kernel over many sets of dense arrays, in place: what an optimizer does to parameters.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kfusion/lower/kernel.hpp"
#include "runtime/memory.hpp"
#include "runtime/parameters.hpp"

namespace kfusion {

/// Sets of as many arrays each, those of a set with one number of elements.
class ArraySets {
 public:
  explicit ArraySets(std::size_t arrays) : arrays_(arrays) {}

  /// The arrays of a set follow, in order. One without elements is left out.
  void add(const std::vector<std::byte*>& arrays, std::int64_t elements);

  std::size_t count() const { return elements_.size(); }
  std::size_t arrays() const { return arrays_; }
  std::byte* const* set(std::size_t i) const { return addresses_.data() + i * arrays_; }
  std::int64_t elements(std::size_t i) const { return elements_[i]; }
  std::int64_t all_elements() const { return all_; }

 private:
  std::size_t arrays_;
  std::vector<std::byte*> addresses_;
  std::vector<std::int64_t> elements_;
  std::int64_t all_ = 0;
};

class EachStep {
 public:
  virtual ~EachStep() = default;
  /// Throws what compiling throws.
  virtual void finish() {}
  /// Thread-safe. Each element is read before it is written. Sets share no memory that is written.
  virtual void run(const ArraySets& sets, const double* parameters, Stream stream) const = 0;
};
using EachPointer = std::unique_ptr<EachStep>;

/// `kernel` is of dense arrays of one axis, of some large extent; `loads` and `stores` number its arrays within a set.
struct EachRequest {
  Kernel kernel;
  std::vector<int> loads, stores;
  std::size_t arrays;
  Place place;
  bool aligned;  ///< all arrays begin at multiples of the memory's vector_bytes
};

/// Extent of such a kernel's axis.
inline constexpr std::int64_t kEachElements = std::int64_t{1} << 30;

/// The request for a plan whose arrays have one axis of kEachElements elements; nothing unless it is one elementwise
/// kernel. `targets`: by output, the number of the input that it overwrites.
std::optional<EachRequest> each_request(const Plan& plan, Place place, bool aligned, const std::vector<int>& targets);

/// A plan that is one such kernel, ready to run.
class Each {
 public:
  /// Takes the arguments of each_request(). nullptr where that gives nothing, or the executor has no such step.
  static std::unique_ptr<const Each> make(const Plan& plan, Place place, bool aligned, const std::vector<int>& targets);

  /// What kernels take of the call's float arguments.
  std::vector<double> values(const double* parameters) const;
  /// `values`: as above.
  void run(const ArraySets& sets, const std::vector<double>& values, Stream stream) const;
  std::size_t arrays() const { return arrays_; }

 private:
  std::vector<Parameter> parameters_;
  std::size_t arrays_ = 0;
  EachPointer step_;
};

}  // namespace kfusion
