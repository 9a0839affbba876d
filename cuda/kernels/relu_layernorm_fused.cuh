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

/// Bytes that a block keeps of one column of `c`.
template <class T, template <class> class Access>
int kept_bytes(const ColOperand& c) {
  return c.data ? Access<T>::kept_bytes(static_cast<int>(item_bytes(c.dtype))) : 0;
}

/// Has blocks keep their columns of `c` behind the first `kept` bytes, where that fits `room`.
template <class T, template <class> class Access>
void keep(device::Column& column, const ColOperand& c, std::int64_t cols, const RowConfig& config, int room,
          int& kept) {
  constexpr std::int64_t kSlot = sizeof(device::Slot);  // what follows stays aligned
  std::int64_t block_cols = cols;
  if (config.fit == device::Fit::kTeam) {
    // As many as Team::block_span gives a block.
    block_cols = std::min<std::int64_t>(cols, std::int64_t{32} * config.slots * device::kLanes<T> * config.warps);
  }
  const std::int64_t bytes = divide_up(block_cols * kept_bytes<T, Access>(c), kSlot) * kSlot;
  const bool whole = !Access<T>::kWholeSlots || cols * kept_bytes<T, Access>(c) % kSlot == 0;
  if (!c.data || !whole || kept + bytes > room) return;
  column.keep_at = kept;
  kept += static_cast<int>(bytes);
}

/// Whether blocks keep their columns of weight and bias in shared memory. The loads of a small matrix are all cold, and
/// those of its parameters would follow them one after the other (4096 x 1024 float32: 0.98 of a copy's time instead of
/// 1.13). Of a large one L1 has the parameters after the first rows, and memory kept for them costs rows in flight
/// (65536 x 1024 bfloat16: 1.17 instead of 1.08), unless elements are read one by one, which is more than L1 answers.
template <class Access>
bool keeps_parameters(const RowProblem& p, const RowConfig& config, std::int64_t row_bytes, int device) {
  if (config.fit == device::Fit::kChunks) return false;
  return p.rows * row_bytes <= limits(device).l2_bytes || (!Access::kWholeSlots && config.fit == device::Fit::kWarp);
}

template <class T, template <class> class Access, class P>
void launch_fused(const RowProblem& p, int device, Stream stream) {
  using Op = device::ReluLayernorm<T, P>;
  using Value = device::Moments<device::Compute<T>>;
  const device::Rows m = rows_of(p);
  Op op{{column_of(p.weight), column_of(p.bias)}, static_cast<device::Compute<T>>(p.eps)};
  constexpr int kSlots = kMaxSlots<Access<T>>;
  const void* largest = row_kernel_for<T, Access<T>, Op>(device::Fit::kTeam, kSlots);
  const int multiprocessors = limits(device).multiprocessors;
  const std::int64_t row_bytes = p.cols * static_cast<std::int64_t>(sizeof(T));
  RowConfig config =
      choose(p.rows, row_bytes, kSlots, max_blocks<std::pair<Access<T>, Op>>(largest, device), multiprocessors);

  int kept = 0;
  if (Op::Parameters::kKeeps && keeps_parameters<Access<T>>(p, config, row_bytes, device)) {
    const int room = limits(device).shared_bytes - static_cast<int>(exchange_bytes<Value>(config));
    keep<T, Access>(op.parameters.weight, p.weight, p.cols, config, room, kept);
    keep<T, Access>(op.parameters.bias, p.bias, p.cols, config, room, kept);
  }
  if (kept > 0 && config.fit == device::Fit::kWarp) {  // as many rows a block as still give every SM one
    config.warps = static_cast<int>(std::clamp<std::int64_t>(
        divide_up(p.rows, std::int64_t{32} / config.lanes * multiprocessors), config.warps, kMaxWarps));
  }
  launch_rows<Value>(row_kernel_for<T, Access<T>, Op>(config.fit, config.slots), config, kept, device, stream, m, op);
}

template <DType kType>
void fused_relu_layernorm_of(const RowProblem& p, int device, Stream stream) {
  using T = typename ElementOf<kType>::type;
  const UseDevice use(device);
  const bool packed = p.x.col_stride == static_cast<int>(sizeof(T)) && p.y.col_stride == static_cast<int>(sizeof(T));
  const bool whole_slots = in_slots(p, p.x) && in_slots(p, p.y) && in_slots(p.weight) && in_slots(p.bias);
  if (!packed) {
    launch_fused<T, device::StridedAccess, T>(p, device, stream);
  } else if (!whole_slots && !p.weight.data && !p.bias.data) {
    launch_fused<T, device::PackedAccess, void>(p, device, stream);
  } else if (!whole_slots || !(stored_as(p, kType) || stored_as(p, DType::kFloat32))) {
    launch_fused<T, device::PackedAccess, T>(p, device, stream);
  } else if (!p.weight.data && !p.bias.data) {
    launch_fused<T, device::VectorAccess, void>(p, device, stream);
  } else if (stored_as(p, kType)) {
    launch_fused<T, device::VectorAccess, T>(p, device, stream);
  } else {
    launch_fused<T, device::VectorAccess, float>(p, device, stream);
  }
}

}  // namespace kfusion::cuda
