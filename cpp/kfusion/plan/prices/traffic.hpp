// What a plan moves and computes, and what that costs on a device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfusion/plan/device.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/prices/flops.hpp"
#include "kfusion/savings.hpp"

namespace kfusion {

struct Bytes {
  std::int64_t read = 0, written = 0;
  std::int64_t total() const { return read + written; }
};

struct Traffic {
  Bytes compulsory;  ///< each distinct input element of a kernel once, each output once
  Bytes issued;      ///< what the kernel's passes load and store
  std::vector<FlopCount> flops;
  int launches = 0;
  std::int64_t flop_total() const;
  double intensity() const;  ///< flop_total / compulsory.total(); 0 where there are no bytes
};

enum class Bound : std::uint8_t { kLaunch, kMemory, kCompute };

struct Price {
  double launch_us = 0, memory_us = 0, compute_us = 0;
  double total_us = 0;  ///< launch_us + max(memory_us, compute_us), or measured
  Bound bound = Bound::kMemory;
  double predicted_us = 0;  ///< of a whole plan's: total_us, had nothing been measured
  bool measured = false;
  double vector_us = 0;  ///< of compute_us: what is of no product, at the peak
};

struct Cost {
  Traffic traffic;
  Price price;
};

struct PlanCost {
  std::vector<Cost> groups;  ///< by group
  Cost total;
  std::int64_t peak_intermediate_bytes = 0;  ///< peak memory of results passed between kernels
};

/// Linear in nodes and loads.
PlanCost count(const Plan& plan, const Device& d);
/// count() without a copy: the plan is changed only while it counts.
PlanCost count_in_place(Plan& plan, const Device& d);

/// Values, by name_in_variants(), that a kernel of loops computes more often than they have elements, and hands to what
/// it computes for each element, where that takes clearly longer than computing them once. Those that take longest
/// first.
std::vector<std::string> values_computed_again(const Plan& plan, const Device& d);

/// The calculator's keys, from issued bytes of the two plans.
Savings savings(const PlanCost& unfused, const PlanCost& fused);

}  // namespace kfusion
