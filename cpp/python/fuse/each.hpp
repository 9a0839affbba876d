// A function called for many sets of arguments at once: elementwise work on arguments in one kernel for all sets.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "python/fuse/entry.hpp"
#include "runtime/each.hpp"

namespace kfusion::fuse {

/// The kernel for sets as the one that was traced; nullptr where the function is not elementwise, gives results, or its
/// arrays lie in several ways. Made once for all calls that want the same.
std::shared_ptr<const Each> each_of(const Graph& graph, const Device& device, const PlanOptions& options,
                                    const Inputs& inputs, const Entry& entry);

/// The sets of one call: what they run is known before any of them runs.
class EachCall {
 public:
  /// A set whose entry has a kernel for many, or none.
  void add(Call& call, const Entry& entry, const Inputs& inputs, const Arrays& targets, const double* parameters);
  /// Throws ValueError where an array that is written shares memory with one of another set.
  void require_apart(const Call& call) const;
  void run(Call& call) const;

 private:
  struct Launch {
    std::shared_ptr<const Each> each;
    std::vector<double> values;
    ArraySets sets;
  };
  struct Range {
    std::uintptr_t begin, end;
    std::size_t set;
    bool written;
    std::ptrdiff_t view;  ///< of views_; -1: a dense array
    View seen(const EachCall& all) const;
  };
  Launch& launch_of(const Entry& entry, const double* parameters);
  void note(const View& v, bool written, bool dense);

  std::vector<Launch> launches_;
  std::vector<Range> ranges_;
  std::deque<View> views_;
  std::vector<std::shared_ptr<void>> keep_;
  std::vector<std::pair<const arrays::Framework*, py::object>> written_;
  const arrays::Framework* library_ = nullptr;
  Place place_;
  std::size_t sets_ = 0;
};

}  // namespace kfusion::fuse
