// What array libraries compute for a plan: products and convolutions on strided views of its values, and calls
// of any of their functions.
#pragma once
#include <map>
#include <span>
#include <vector>

#include "kfusion/plan/device.hpp"
#include "python/arrays/array.hpp"
#include "runtime/library_functions.hpp"

namespace kfusion::arrays {
struct Bridge;
}

namespace kfusion::fuse {

class Inputs;

/// Computes by the functions of the call's arrays (arrays/library_functions.hpp), else by NumPy's. What neither has
/// runs through the reference interpreter on hosts; on devices it throws DeviceError. Made and destroyed with the GIL,
/// works without.
class CallersLibrary final : public LibraryFunctions {
 public:
  /// `results`: of the call; those that are `fresh` may become what the library has made. Those without memory are made
  /// when something is stored into them.
  CallersLibrary(arrays::Call& call, const Device& device, const arrays::Framework& framework, const Inputs& inputs,
                 std::span<arrays::Result> results, const bool* fresh)
      : call_(call), device_(device), framework_(framework), inputs_(inputs), results_(results), fresh_(fresh) {}

  void compute(const Node& n, std::span<const LibraryArgument> arguments, LibraryResult& result, Place place,
               Stream stream) override;
  void call(const Node& n, std::span<const LibraryArgument> arguments, std::span<LibraryResult> results, Place place,
            Stream stream) override;
  std::byte* make(int slot) override;
  std::byte* lend(int slot, std::int64_t bytes, Place place, Stream stream) override;
  void release(int slot) override;

 private:
  /// A result that the library's memory holds until no kernel reads it any more.
  struct Kept {
    arrays::py::object object;
    std::shared_ptr<void> memory;
  };

  class Order;

  /// Computes the product of the arguments transposed, which a kernel transposes back.
  void compute_turned(const Node& n, std::span<const LibraryArgument> arguments, LibraryResult& result,
                      const arrays::Bridge& bridge, Stream stream);
  void call_into(const arrays::py::object& f, const std::string& name, const arrays::py::list& given,
                 std::span<LibraryResult> results, const arrays::Bridge& bridge);
  void compute_plainly(const Node& n, std::span<const LibraryArgument> arguments, const View& result) const;
  arrays::py::object argument(const LibraryArgument& a, const arrays::Bridge& bridge) const;
  void take(const std::string& function, arrays::py::object object, LibraryResult& r, const arrays::Bridge& bridge);
  /// Makes what is left to the run.
  void make_result(LibraryResult& r);
  /// Makes the object a result of the call, instead of copying it to the array that was made for that. Whether it can
  /// be.
  bool hand_over(const arrays::py::object& object, LibraryResult& r, bool in_order);
  arrays::Array checked(const std::string& function, const arrays::py::object& object, const View& wanted);

  arrays::Call& call_;
  const Device& device_;
  const arrays::Framework& framework_;
  const Inputs& inputs_;
  std::span<arrays::Result> results_;
  const bool* fresh_;
  std::map<int, Kept> kept_;                ///< by slot
  std::map<int, arrays::py::object> lent_;  ///< likewise
};

}  // namespace kfusion::fuse
