// The times that Python has read from disk, for plans.
#pragma once
#include <cstdint>
#include <memory>

#include "kfusion/plan/prices/device.hpp"
#include "kfusion/plan/prices/measured.hpp"

namespace kfusion {

/// What is known of a device; nullptr where that is nothing.
std::shared_ptr<const Measured> measured_on(const Device& device);

/// Another number whenever other times are known.
std::uint64_t measured_generation();

}  // namespace kfusion
