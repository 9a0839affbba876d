// matmul_max
#include "device/contract_reduced.cuh"
#include "device/contract_memory.cuh"
#include "device/partial.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  bfloat16_t* out_result_0;
  alignas(8) i64 count;
  char* workspace;
  char* standing;
};

struct Fused {
  using Params = Parameters;
  static constexpr int kProducts = 1, kColumns = 0, kColumnValues = 0;
  static constexpr bool kParts = true;

  struct State {
    float max_1;  // result
  };
  static KF_DEVICE State none() {
    State s;
    s.max_1 = float(lowest<float>());
    return s;
  }

  template <bool kWhole, int kPairs, int kAll>
  static KF_DEVICE void fold(State& s, [[maybe_unused]] const Params& p, const float (&acc)[kAll], int h, const Point& at) {
    State part[2] = {none(), none()};  // two, for half the latency
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        [[maybe_unused]] const int col = at.col + 8 * j + x;
        if (!kWhole && col >= at.cols) continue;
        [[maybe_unused]] const float value_0 = acc[4 * j + 2 * h + x];  // matmul
        part[x].max_1 = maximum(part[x].max_1, float(value_0));
      }
    }
    join(part[0], part[1]);
    join(s, part[0]);
  }

  static KF_DEVICE void join(State& s, const State& o) {
    s.max_1 = maximum(s.max_1, o.max_1);
  }

  static KF_DEVICE void end(const State& s, const Params& p, int batch, int row) {
    [[maybe_unused]] const Point at{batch, row, 0, row + 1, 1};
    [[maybe_unused]] const float max_1 = static_cast<float>(s.max_1);  // result
    store_element(p.out_result_0 + i64(at.row), max_1, true);
  }
};

using Tiling = Tile<bfloat16_t, 128, 256, 4, 2, 1, 0, kLag>;
using Epilogue = Reduced<Tiling, Fused>;
static_assert(Epilogue::SharedMemory::kBytes == 196688 && sizeof(Epilogue::Given) == 1024);
static_assert(sizeof(Fused::State) == 4);

extern "C" __global__ void __launch_bounds__(384, 1)
    kf_matmul_max(const __grid_constant__ Epilogue::Given g) {
  contract<Tiling, Epilogue>(g);
}

}  // namespace kfusion::device::scalar

// grid: (128, 1, 1)
// block: (384, 1, 1)
// cluster: 2
// shared_bytes: 196688
// resident: True
// workspace_bytes: 65536
// standing_bytes: 128
