// The times that Python has read from disk, for plans.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "kfusion/plan/device.hpp"
#include "kfusion/plan/prices/measured.hpp"

namespace kfusion {

/// Microseconds by kernel and executor.
using MeasuredTimes = std::unordered_map<std::string, std::map<std::string, double, std::less<>>>;

/// Replaces what is known, by device.
void set_measured(const std::unordered_map<std::string, MeasuredTimes>& by_device);

/// What is known of a device; nullptr where that is nothing.
std::shared_ptr<const Measured> measured_on(const Device& device);

/// Another number whenever other times are known.
std::uint64_t measured_generation();

/// No times; a plan made with them has keys for its kernels.
std::shared_ptr<const Measured> measured_nothing();

}  // namespace kfusion
