// Arguments that a function writes into: the last outputs of its graph, each with the input where it goes.
#pragma once
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays/array.hpp"

namespace kfusion::fuse {

namespace py = pybind11;
using arrays::Array;
using arrays::Call;

class Inputs;
struct Compiled;

using Arrays = std::pmr::vector<Array>;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// What one output is written into: an input of the graph, or the part of it that a range of each axis names.
struct Target {
  std::size_t input;
  std::string name;
  std::optional<Ranges> part;
  bool in_place = false;  ///< a call of the library writes to the input itself; the output says only that it has run
  bool direct =
      false;  ///< kernels store there themselves; else they store into other memory, which is copied at the end
};

/// Reads a target from (number, name, ranges or None, in place).
Target read_target(py::handle written);

/// The arrays of the targets for one call. Throws TypeError or ValueError where one cannot be written to, or shares
/// memory with another input: each of them would have to see what is written to the other.
Arrays arrays_of(const Call& call, const std::vector<Target>& targets, const Inputs& inputs,
                 std::pmr::memory_resource* memory);

/// Whether kernels may store output `output` straight to the target: nothing is overwritten before it is read, and
/// nothing can fail afterwards.
bool may_store(const Compiled& c, std::size_t output, const Target& target, const Array& array);

}  // namespace kfusion::fuse
