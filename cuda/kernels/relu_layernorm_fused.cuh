// ReLU + LayerNorm as one kernel, for one dtype; instantiated in relu_layernorm_<dtype>.cu.
#pragma once
#include <utility>

#include "kernels/relu_layernorm.cuh"
#include "kernels/relu_layernorm.hpp"
#include "kernels/row_launch.cuh"

namespace kfusion::cuda {

template <class Access>
inline constexpr int kMaxSlots = Access::kWholeSlots ? 16 : 8;  ///< more elements one by one only cost code

/// The kernels that exist: every pair of fit and slots that choose() can name.
template <class T, class Access, class Op>
const void* row_kernel_for(device::Fit fit, int slots) {
  using namespace device;
  const auto pointer = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  if (fit == Fit::kWarp) {
    return slots == 2   ? pointer(&row_kernel<T, Access, Fit::kWarp, 2, Op>)
           : slots == 4 ? pointer(&row_kernel<T, Access, Fit::kWarp, 4, Op>)
                        : pointer(&row_kernel<T, Access, Fit::kWarp, 8, Op>);
  }
  if (fit == Fit::kTeam) {
    return slots == 4   ? pointer(&row_kernel<T, Access, Fit::kTeam, 4, Op>)
           : slots == 8 ? pointer(&row_kernel<T, Access, Fit::kTeam, 8, Op>)
                        : pointer(&row_kernel<T, Access, Fit::kTeam, kMaxSlots<Access>, Op>);
  }
  return pointer(&row_kernel<T, Access, Fit::kChunks, kChunkSlots, Op>);
}

template <class T, template <class> class Access, bool kAffine>
void launch_fused(const RowProblem& p, int device, Stream stream) {
  using Op = device::ReluLayernorm<T, kAffine>;
  const device::Rows m = rows_of(p);
  Op op{column_of(p.weight), column_of(p.bias), static_cast<device::Compute<T>>(p.eps)};
  constexpr int kSlots = kMaxSlots<Access<T>>;
  const void* largest = row_kernel_for<T, Access<T>, Op>(device::Fit::kTeam, kSlots);
  const RowConfig config =
      choose(p.rows, p.cols * static_cast<std::int64_t>(sizeof(T)), kSlots,
             max_blocks<std::pair<Access<T>, Op>>(largest, device), limits(device).multiprocessors);
  launch_rows<device::Moments<device::Compute<T>>>(row_kernel_for<T, Access<T>, Op>(config.fit, config.slots), config,
                                                   device, stream, m, op);
}

template <DType kType>
void fused_relu_layernorm_of(const RowProblem& p, int device, Stream stream) {
  using T = typename ElementOf<kType>::type;
  const UseDevice use(device);
  if (!in_slots(p, p.x) || !in_slots(p, p.y) || !in_slots(p.weight) || !in_slots(p.bias)) {
    launch_fused<T, device::StridedAccess, true>(p, device, stream);
  } else if (p.weight.data || p.bias.data) {
    launch_fused<T, device::VectorAccess, true>(p, device, stream);
  } else {
    launch_fused<T, device::VectorAccess, false>(p, device, stream);
  }
}

}  // namespace kfusion::cuda
