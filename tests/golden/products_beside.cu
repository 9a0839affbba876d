// matmul_add_matmul_2_add_2_matmul_3_add_3
#include "device/contract_stored.cuh"
#include "device/contract_memory.cuh"
#include "device/partial.cuh"

namespace kfusion::device::scalar {

struct Parameters0 {
};

struct Fused0 {
  using Params = Parameters0;
  static constexpr int kProducts = 1, kColumns = 1, kColumnValues = 0;
  static constexpr int kOperands = 0, kResults = 1;
  static constexpr u32 kSums = 0;

  static KF_DEVICE void map([[maybe_unused]] const Params& p, const Pair (&v)[kProducts], [[maybe_unused]] const u32 (&along)[2], [[maybe_unused]] const Pair* columns, [[maybe_unused]] const u32* operands, [[maybe_unused]] u32* results, [[maybe_unused]] const Point& at) {
    float in_a_1[2];
    unpack_pair<bfloat16_t>(along[0], in_a_1[0], in_a_1[1]);
    float out_result_0__0[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      [[maybe_unused]] const bool inside = x ? at.second() : at.first();
      [[maybe_unused]] const float value_0 = x ? v[0].y : v[0].x;  // matmul
      [[maybe_unused]] const float value_1 = in_a_1[x];  // a
      [[maybe_unused]] const float add_2 = value_1 + value_0;  // result[0]
      out_result_0__0[x] = add_2;
    }
    results[0] = pack_pair<bfloat16_t>(out_result_0__0[0], out_result_0__0[1]);
  }
};

struct Parameters1 {
};

struct Fused1 {
  using Params = Parameters1;
  static constexpr int kProducts = 1, kColumns = 1, kColumnValues = 0;
  static constexpr int kOperands = 0, kResults = 1;
  static constexpr u32 kSums = 0;

  static KF_DEVICE void map([[maybe_unused]] const Params& p, const Pair (&v)[kProducts], [[maybe_unused]] const u32 (&along)[2], [[maybe_unused]] const Pair* columns, [[maybe_unused]] const u32* operands, [[maybe_unused]] u32* results, [[maybe_unused]] const Point& at) {
    float in_b_1[2];
    unpack_pair<bfloat16_t>(along[0], in_b_1[0], in_b_1[1]);
    float out_result_1__0[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      [[maybe_unused]] const bool inside = x ? at.second() : at.first();
      [[maybe_unused]] const float value_0 = x ? v[0].y : v[0].x;  // matmul_2
      [[maybe_unused]] const float value_1 = in_b_1[x];  // b
      [[maybe_unused]] const float add_2 = value_1 + value_0;  // result[1]
      out_result_1__0[x] = add_2;
    }
    results[0] = pack_pair<bfloat16_t>(out_result_1__0[0], out_result_1__0[1]);
  }
};

struct Parameters2 {
};

struct Fused2 {
  using Params = Parameters2;
  static constexpr int kProducts = 1, kColumns = 1, kColumnValues = 0;
  static constexpr int kOperands = 0, kResults = 1;
  static constexpr u32 kSums = 0;

  static KF_DEVICE void map([[maybe_unused]] const Params& p, const Pair (&v)[kProducts], [[maybe_unused]] const u32 (&along)[2], [[maybe_unused]] const Pair* columns, [[maybe_unused]] const u32* operands, [[maybe_unused]] u32* results, [[maybe_unused]] const Point& at) {
    float in_c_1[2];
    unpack_pair<bfloat16_t>(along[0], in_c_1[0], in_c_1[1]);
    float out_result_2__0[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      [[maybe_unused]] const bool inside = x ? at.second() : at.first();
      [[maybe_unused]] const float value_0 = x ? v[0].y : v[0].x;  // matmul_3
      [[maybe_unused]] const float value_1 = in_c_1[x];  // c
      [[maybe_unused]] const float add_2 = value_1 + value_0;  // result[2]
      out_result_2__0[x] = add_2;
    }
    results[0] = pack_pair<bfloat16_t>(out_result_2__0[0], out_result_2__0[1]);
  }
};

using Tiling = Tile<bfloat16_t, 128, 128, 6, 2, 1, 2, 0>;
using Epilogue = Stored<Tiling, Fused0, Fused1, Fused2>;
static_assert(Epilogue::SharedMemory::kBytes == 231344 && sizeof(Epilogue::Given) == 2176);

extern "C" __global__ void __launch_bounds__(384, 1)
    kf_matmul_add_matmul_2_add_2_matmul_3_add_3(const __grid_constant__ Epilogue::Given g) {
  contract<Tiling, Epilogue>(g);
}

}  // namespace kfusion::device::scalar

// grid: (264, 1, 1)
// block: (384, 1, 1)
// cluster: 2
// shared_bytes: 231344
// resident: True
