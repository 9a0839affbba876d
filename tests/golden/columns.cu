// sum
#include "device/columns.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  float* out_result;
  Axes<int, 1> inner;
  Axes<int, 1> outer;
  Geometry geometry;
  char* workspace;
  char* standing;
};

struct Fused {
  using Index = int;
  using Row = int;
  using At = Place<Index, 1>;
  static constexpr int kWidth = 4, kSweeps = 1;
  static constexpr bool kLooks[] = {false}, kBatches[] = {false};
  static constexpr bool kWhole = true, kFetches = true, kCrosses = false;
  const Parameters& p;

  KF_DEVICE i64 elements() const { return p.inner.size; }
  KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }

  struct Line {
    const float* in_x;
    float* out_result;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_x = p.in_x + (row.at[0] * p.row_stride0_of_in_x);
    line.out_result = p.out_result;
    return line;
  }
  static constexpr int kEdges = 0;
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return place(first); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return elements(); }
  KF_DEVICE i64 most_elements() const { return elements(); }

  struct Held {
    KF_DEVICE void forget() { }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at, const Line& corner, int column) const {
    Held v{};
    return v;
  }
  template <int kN>
  static KF_DEVICE void uncross(Held (&rows)[kN]) {
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }

  struct Column0 {
    static constexpr bool kNothing = false, kSymmetric = true;
    float sum_1;
    KF_DEVICE void merge(const Column0& b) {
      sum_1 = sum_1 + b.sum_1;
    }
    KF_DEVICE void settle() {
    }
  };
  using Partial0 = Columns<Column0, kWidth>;
  static KF_DEVICE Partial0 partial(Sweep<0>) {
    Partial0 v;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
      v.column[j].sum_1 = float(0);
      }
    return v;
  }

  struct Fetched0 {
    Vector<float, kWidth> in_x;
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at, const Line& corner, int column) const {
    Fetched0 v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_x), at.count);
    return v;
  }
  template <int kN>
  static KF_DEVICE void uncross(Fetched0 (&rows)[kN]) {
  }

  struct Crossed0 {
  };
  static KF_DEVICE Crossed0 crossed(Sweep<0>) { return {}; }
  template <int kN>
  static KF_DEVICE void uncross(Crossed0 (&rows)[kN]) {
  }
  KF_DEVICE void store(const Line& corner, const At& at, int column, const Crossed0& crossed) const {
  }

  struct Values {
    float sum_1[kWidth];
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
    }
    return values;
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part, Crossed0& crossed) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(in.in_x, j);  // x
      part.column[j].sum_1 = part.column[j].sum_1 + float(in_x);  // result
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values.sum_1[j] = part.column[j].sum_1;  // result
    }
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
    float out_result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      out_result[j] = values.sum_1[j];
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    kf_sum(const __grid_constant__ Parameters p) {
  columns<Fused, 8>(Fused{p}, p.geometry, p.workspace, p.standing);
}

}  // namespace kfusion::device::scalar

// grid: (32, 8, 1)
// block: (32, 8, 1)
// cluster: 1
// shared_bytes: 8192
// workspace_bytes: 131072
// standing_bytes: 512
