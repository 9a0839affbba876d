// What kernels cost on a device, one after another: a later one can find in the cache what an earlier one touched.
#pragma once
#include <vector>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {

/// The share of a launch that prices cannot tell apart.
constexpr double kIndistinctLaunch = 0.1;

/// What a kernel reads of one value.
struct Read {
  NodeId base = 0;
  std::int64_t bytes = 0;         ///< distinct
  std::int64_t issued_bytes = 0;  ///< over all sweeps
};

/// time = launch + max(memory, compute)
///
/// memory: bytes at the bandwidth of a copy. Three kinds of read come at the cache's bandwidth, all where less than
/// half the cache has been touched since: values that an earlier kernel wrote, values that an earlier kernel read, and
/// rows that this kernel sweeps again. Writes never do: measured on the H200, a kernel whose input lies in L2 takes the
/// time of a cold copy less that of the cached read, also where its result would have fitted. Nor is a CPU's
/// write-allocate counted: its kernels store large results past the cache.
///
/// compute: FLOPs at the peaks, divisions and functions as op_cost.cpp has them, vector and matrix units one after the
/// other.
///
/// Inputs are cold, as in the measurements of results/.
class Pricer {
 public:
  Pricer(const Plan& plan, const Device& device);

  /// Price of the kernel that runs after those that were priced before.
  Price price(const Group& group, const Traffic& traffic, const std::vector<Read>& reads);

 private:
  bool in_cache(const Read& read) const;
  bool rows_stay_in_cache(const Group& group, const std::vector<Read>& reads) const;
  void touch(const Group& group, const Traffic& traffic, const std::vector<Read>& reads);

  const Plan& plan_;
  const Graph& g_;
  const Device& device_;
  std::int64_t moved_bytes_ = 0;       ///< by all kernels so far
  std::vector<std::int64_t> touched_;  ///< by node: moved_bytes_ when its value was last touched, -1 for never
};

/// What a kernel of products takes: on a GPU these reach a part of the peaks only. `roofline`: without it.
Price product_price(Price roofline, const Device& device);

/// How many times as long as its products alone a function of the library takes.
double times_of_products(const std::string& function, DType dtype, const Device& device);

/// The time of an attention's maps, as `roofline` has it, beyond those of a softmax of scores of this type, which are
/// part of any attention.
double beyond_softmax_us(const Price& roofline, DType dtype, double scores, const Device& device);

/// What limits: launch where it takes longer than both others.
Bound bound_of(const Price& p);

/// The total and the bound of what a price is made of. `start_us`: what else precedes and follows a kernel's work.
void settle(Price& p, double start_us = 0);

}  // namespace kfusion
