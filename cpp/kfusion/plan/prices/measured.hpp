// What kernels took where somebody has measured them, in the place of prices.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

struct Plan;
struct Group;

/// Times on one device. Looked up while plans are made, so without files; does not change.
class Measured {
 public:
  virtual ~Measured() = default;
  /// Microseconds of the kernel with this key (Group::key) by an executor; nothing where that was not measured.
  virtual std::optional<double> us(std::string_view key, std::string_view executor) const = 0;
};

/// What a kernel computes as a function of its own: what it reads are inputs, what it stores outputs. Nothing for
/// kernels that are none without the rest of their plan: calls of the library, and those that store into joins.
std::optional<Graph> alone(const Plan& plan, const Group& group);

/// A key that kernels share which do the same in any function: without names, numbers that may change, and places.
/// Empty where `alone` gives nothing.
std::string key_of(const Plan& plan, const Group& group);

}  // namespace kfusion
