#include "kfusion/plan/prices/price.hpp"

#include <algorithm>

#include "kfusion/checked.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/op_cost.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

double us(double amount, double per_second) { return amount / per_second * 1e6; }

}  // namespace

Bound bound_of(const Price& p) {
  if (p.launch_us > std::max(p.memory_us, p.compute_us)) return Bound::kLaunch;
  return p.compute_us > p.memory_us ? Bound::kCompute : Bound::kMemory;
}

void settle(Price& p, double start_us) {
  p.total_us = p.launch_us + start_us + std::max(p.memory_us, p.compute_us);
  p.bound = bound_of(p);
}

Price product_price(Price p, const Device& device) {
  // cuBLAS, bfloat16, cold L2, an H100 (results/h100.json): 0.78 of the peak from 10^12 operations on, which
  // is what the power limit leaves, and 5 us more than that for 10^10. A CPU's peak is that of a library's product.
  constexpr double kEfficiency = 0.78, kStartUs = 5;
  if (device.is_cpu) return p;
  p.launch_us += kStartUs;
  p.compute_us = (p.compute_us - p.vector_us) / kEfficiency + p.vector_us;
  settle(p);
  return p;
}

double times_of_products(const std::string& function, DType dtype, const Device& device) {
  if (!function.ends_with("scaled_dot_product_attention")) return 1;
  // torch's attention of bfloat16 takes a CPU as long as that of float32 (2 x 8 x 512 x 64: 12.0 and 11.3 ms, one
  // core), though its products of bfloat16 take a quarter.
  if (device.is_cpu && is_half(dtype))
    return peak_flops(device, dtype, true) / peak_flops(device, DType::kFloat32, true);
  // FlashAttention-2, which it prefers, reaches 0.36 of the peak of an H100 (b4 h16 s4096 d128, bfloat16), where
  // products reach 0.78.
  return device.compute_capability == 90 ? 0.78 / 0.36 : 1;
}

double beyond_softmax_us(const Price& roofline, DType dtype, double scores, const Device& device) {
  constexpr double kSimple = 5;  // scale, maximum, difference, sum, quotient
  const double work = scores * (kSimple + info(Op::exp).flops * work_of_flop(Op::exp, dtype, device));
  return std::max(0.0, roofline.vector_us - us(work, peak_flops(device, dtype, false)));
}

Pricer::Pricer(const Plan& plan, const Device& device)
    : plan_(plan), g_(plan.graph), device_(device), touched_(plan.graph.nodes.size(), -1) {}

Price Pricer::price(const Group& group, const Traffic& traffic, const std::vector<Read>& reads) {
  const bool rows_cached = rows_stay_in_cache(group, reads);
  std::int64_t cached = 0;
  for (const Read& r : reads) {
    if (in_cache(r)) cached += r.bytes;
    if (rows_cached) cached += r.issued_bytes - r.bytes;
  }
  Price p;
  p.launch_us = traffic.launches * device_.launch_us;
  p.memory_us = us(static_cast<double>(traffic.issued.total() - cached), device_.bandwidth) +
                us(static_cast<double>(cached), device_.cache_bandwidth);
  for (const FlopCount& f : traffic.flops) {
    const double flops_us = us_of(f, device_);
    p.compute_us += flops_us;
    if (!f.matrix) p.vector_us += flops_us;
  }
  settle(p);
  if (std::ranges::any_of(traffic.flops, &FlopCount::matrix)) p = product_price(p, device_);
  if (group.executor) p = group.executor->price(plan_, group, p, device_);
  p.predicted_us = p.total_us;
  if (plan_.measured && group.executor && !group.key.empty())
    if (const auto us = plan_.measured->us(group.key, group.executor->name())) p.total_us = *us, p.measured = true;
  touch(group, traffic, reads);
  return p;
}

bool Pricer::in_cache(const Read& read) const {
  const std::int64_t touched = touched_[static_cast<std::size_t>(read.base)];
  const std::int64_t room = device_.cache_bytes / 2 - g_[read.base].nbytes();
  return touched >= 0 && moved_bytes_ - touched <= room;
}

/// Between two sweeps over a row lie the other rows in flight: as many as the device has room for.
bool Pricer::rows_stay_in_cache(const Group& group, const std::vector<Read>& reads) const {
  double swept_bytes = 0;
  for (const Read& r : reads) swept_bytes += r.issued_bytes > r.bytes ? static_cast<double>(r.bytes) : 0;
  if (swept_bytes == 0) return false;
  const auto rows = static_cast<double>(group.rows());
  const double room = static_cast<double>(device_.tile_bytes) * device_.units;
  const double in_flight = std::min(rows, std::max(1.0, room / static_cast<double>(device_.on_chip_bytes)));
  return swept_bytes / rows * in_flight <= static_cast<double>(device_.cache_bytes) / 2;
}

void Pricer::touch(const Group& group, const Traffic& traffic, const std::vector<Read>& reads) {
  moved_bytes_ = checked_add(moved_bytes_, traffic.compulsory.total());
  for (const Read& r : reads) touched_[static_cast<std::size_t>(r.base)] = moved_bytes_;
  for (const NodeId n : group.stores) touched_[at(stored_in(plan_.folded, n))] = moved_bytes_;
}

}  // namespace kfusion
