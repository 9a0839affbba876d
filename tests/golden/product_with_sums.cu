// gelu_matmul_gelu_backward_sum
#include "device/contract_stored.cuh"
#include "device/contract_memory.cuh"
#include "device/partial.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  float* out_sum_partial_sums_1;
  alignas(8) float scalar_1;
  alignas(8) float scalar_3;
  alignas(8) float scalar_6;
  alignas(8) float scalar_11;
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
      [[maybe_unused]] const float multiply_2 = value_0 * p.scalar_1;  // gelu
      [[maybe_unused]] const float multiply_4 = value_0 * p.scalar_3;  // gelu.multiply
      [[maybe_unused]] const float erf_5 = quick_erf(multiply_4);  // gelu.erf
      [[maybe_unused]] const float add_7 = erf_5 + p.scalar_6;  // gelu_2
      [[maybe_unused]] const float value_8 = x ? v[0].y : v[0].x;  // matmul
      [[maybe_unused]] const float multiply_9 = add_7 * value_8;  // gelu_backward.multiply
      [[maybe_unused]] const float multiply_10 = multiply_2 * value_8;  // gelu_backward.multiply_2
      [[maybe_unused]] const float multiply_12 = multiply_10 * p.scalar_11;  // gelu_backward.multiply_3
      [[maybe_unused]] const float multiply_13 = multiply_4 * multiply_4;  // gelu_backward.multiply_4
      [[maybe_unused]] const float negative_14 = -multiply_13;  // gelu_backward.negative
      [[maybe_unused]] const float exp_15 = quick_exp(negative_14);  // gelu_backward.exp
      [[maybe_unused]] const float multiply_16 = multiply_12 * exp_15;  // gelu_backward.multiply_5
      [[maybe_unused]] const float multiply_17 = multiply_16 * p.scalar_3;  // gelu_backward.multiply_6
      [[maybe_unused]] const float multiply_18 = multiply_9 * p.scalar_1;  // gelu_backward.multiply_7
      [[maybe_unused]] const float add_19 = fmaf(multiply_16, p.scalar_3, multiply_18);  // result[0]
      out_result_0__0[x] = add_19;
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
