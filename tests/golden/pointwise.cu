// add_relu
#include "device/pointwise.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  const float* in_y;
  float* out_result;
  Axes<int, 1> inner;
};

struct Fused {
  using Index = int;
  using Row = int;
  using At = Place<Index, 1>;
  static constexpr int kWidth = 4, kSweeps = 1;
  static constexpr bool kLooks[] = {false}, kBatches[] = {false};
  static constexpr bool kWhole = false, kFetches = false;
  const Parameters& p;

  KF_DEVICE i64 elements() const { return p.inner.size; }
  KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }

  struct Line {
    const float* in_x;
    const float* in_y;
    float* out_result;
  };
  KF_DEVICE Line line(Row number) const {
    Line line;
    line.in_x = p.in_x;
    line.in_y = p.in_y;
    line.out_result = p.out_result;
    return line;
  }
  static constexpr int kEdges = 0;
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return place(first); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return elements(); }
  KF_DEVICE i64 most_elements() const { return elements(); }

  struct Held {
    Vector<float, kWidth> in_x;
    Vector<float, kWidth> in_y;
    KF_DEVICE void forget() { device::forget(in_x); device::forget(in_y); }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at) const {
    Held v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_x), at.count);
    v.in_y = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_y), at.count);
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }

  using Partial0 = Nothing;
  static KF_DEVICE Nothing partial(Sweep<0>) { return {}; }

  struct Fetched0 {
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at) const {
    Fetched0 v{};
    return v;
  }

  struct Values {
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
    return values;
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
    float out_result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float in_y = get(held.in_y, j);  // y
      const float add_2 = in_x + in_y;  // add
      const float relu_3 = relu(add_2);  // result
      out_result[j] = relu_3;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(128, 12)
    kf_add_relu(const __grid_constant__ Parameters p) {
  pointwise<Fused, 1>(Fused{p});
}

}  // namespace kfusion::device::scalar

// grid: (32768, 1, 1)
// block: (128, 1, 1)
// cluster: 1
