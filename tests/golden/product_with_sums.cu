// gelu_matmul_gelu_backward_sum
#include "device/contract_stored.cuh"
#include "device/contract_memory.cuh"
#include "device/partial.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  float* out_sum_partial_sums_1;
  alignas(8) float scalar_1;
  alignas(8) float scalar_4;
  alignas(8) float scalar_6;
  alignas(8) float scalar_9;
  alignas(8) float scalar_12;
};

struct Fused {
  using Params = Parameters;
  static constexpr int kProducts = 1, kColumns = 0, kColumnValues = 0;
  static constexpr int kOperands = 1, kResults = 1;
  static constexpr u32 kSums = 1;

  static KF_DEVICE float* sums(const Params& p, int result) { return result == 0 ? p.out_sum_partial_sums_1 : nullptr; }

  static KF_DEVICE void map([[maybe_unused]] const Params& p, const Pair (&v)[kProducts], [[maybe_unused]] const u32 (&along)[2], [[maybe_unused]] const Pair* columns, [[maybe_unused]] const u32* operands, [[maybe_unused]] u32* results, [[maybe_unused]] const Point& at) {
    float in_h_0[2];
    unpack_pair<bfloat16_t>(operands[0], in_h_0[0], in_h_0[1]);
    float out_result_0__0[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      [[maybe_unused]] const bool inside = x ? at.second() : at.first();
      [[maybe_unused]] const float value_0 = in_h_0[x];  // h
      [[maybe_unused]] const float multiply_2 = value_0 * p.scalar_1;  // gelu.multiply
      [[maybe_unused]] const float erf_3 = quick_erf(multiply_2);  // gelu.erf
      [[maybe_unused]] const float add_5 = erf_3 + p.scalar_4;  // gelu.add
      [[maybe_unused]] const float multiply_7 = add_5 * p.scalar_6;  // gelu.multiply_2
      [[maybe_unused]] const float multiply_8 = value_0 * value_0;  // gelu.multiply_3
      [[maybe_unused]] const float multiply_10 = multiply_8 * p.scalar_9;  // gelu.multiply_4
      [[maybe_unused]] const float exp_11 = quick_exp(multiply_10);  // gelu.exp
      [[maybe_unused]] const float multiply_13 = exp_11 * p.scalar_12;  // gelu.multiply_5
      [[maybe_unused]] const float multiply_14 = value_0 * multiply_13;  // gelu.multiply_6
      [[maybe_unused]] const float add_15 = fmaf(add_5, p.scalar_6, multiply_14);  // gelu
      [[maybe_unused]] const float value_16 = x ? v[0].y : v[0].x;  // matmul
      [[maybe_unused]] const float multiply_17 = add_15 * value_16;  // result[0]
      out_result_0__0[x] = multiply_17;
    }
    results[0] = pack_pair<bfloat16_t>(out_result_0__0[0], out_result_0__0[1]);
  }
};

using Tiling = Tile<bfloat16_t, 128, 256, 3, 2, 1, 4, kAcrossB | kSums>;
using Epilogue = Stored<Tiling, Fused>;
static_assert(Epilogue::SharedMemory::kBytes == 213184 && sizeof(Epilogue::Given) == 1024);

extern "C" __global__ void __launch_bounds__(384, 1)
    kf_gelu_matmul_gelu_backward_sum(const __grid_constant__ Epilogue::Given g) {
  contract<Tiling, Epilogue>(g);
}

}  // namespace kfusion::device::scalar

// grid: (264, 1, 1)
// block: (384, 1, 1)
// cluster: 2
// shared_bytes: 213184
// resident: True
