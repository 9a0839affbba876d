// What a caller's array library computes for a plan.
#pragma once
#include <span>

#include "kfusion/graph/graph.hpp"
#include "runtime/memory.hpp"

namespace kfusion {

/// What a library's function reads.
struct LibraryArgument {
  View view;
  int slot = -1;  ///< where the value lies among those of the run; -1 for a view of one
};

/// What it computes: result `index` of the call.
struct LibraryResult {
  View view;
  int slot = -1;
  int index = 0;
  bool kept = false;  ///< the library's own memory holds it; else it is written to `view`, or becomes a result of the
                      ///< caller's in the place of `view`'s memory, if any, and is kept then
};

/// The functions of the library that a call's arrays are of.
class LibraryFunctions {
 public:
  /// Computes `n`, a product, a convolution or a gather, in the order of `stream`. Where the result is kept, sets its
  /// `view.data` to where the library has put it, in C order; it stays there until `release`.
  virtual void compute(const Node& n, std::span<const LibraryArgument> arguments, LibraryResult& result, Place place,
                       Stream stream) = 0;

  /// Computes the results of a library_call, as compute() does that of other nodes.
  virtual void call(const Node& n, std::span<const LibraryArgument> arguments, std::span<LibraryResult> results,
                    Place place, Stream stream) = 0;
  /// Makes the output in that slot, which was left to the run.
  virtual std::byte* make(int /*slot*/) { return nullptr; }
  /// Memory for what kernels store, in the order of `stream`, until `release`; nullptr: it lends none.
  virtual std::byte* lend(int /*slot*/, std::int64_t /*bytes*/, Place, Stream) { return nullptr; }
  /// Nothing reads the kept result in that slot any more, or what was lent to it, or the donated argument.
  virtual void release(int slot) = 0;

 protected:
  ~LibraryFunctions() = default;
};

}  // namespace kfusion
