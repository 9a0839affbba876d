// The kinds of error that reach a user. The message form is
// "kfusion.<function>: <argument> must <what was wanted>, got <what came>".
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace kfusion {

/// A wrong shape or value: ValueError in Python.
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// An index that points outside of an array: IndexError in Python.
struct IndexError : std::out_of_range {
  using std::out_of_range::out_of_range;
};

/// A wrong dtype or kind of object: TypeError in Python.
struct TypeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Anything a driver, a device or a stream says no to: kfusion.DeviceError (a RuntimeError) in Python.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A library has no kernel for a group of a plan: another plan may run. `without`: the executor that it has to do
/// without; empty where that refuses the group from now on.
struct NoSuchKernel : DeviceError {
  explicit NoSuchKernel(const std::string& what, std::string executor = {})
      : DeviceError(what), without(std::move(executor)) {}
  std::string without;
};

}  // namespace kfusion
