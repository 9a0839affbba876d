// softmax
#include "device/tiles.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  float* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  Axes<int, 1> inner;
  Axes<int, 1> outer;
  Geometry geometry;
  char* standing;
};

struct Fused {
  using Index = int;
  using Row = int;
  using At = Place<Index, 1>;
  static constexpr int kWidth = 4, kSweeps = 2;
  static constexpr bool kLooks[] = {true, false}, kBatches[] = {false, false};
  static constexpr bool kWhole = true, kFetches = false, kCrosses = false;
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
    line.out_result = p.out_result + (row.at[0] * p.row_stride0_of_out_result);
    return line;
  }
  static constexpr int kEdges = 0;
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return place(first); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return elements(); }
  KF_DEVICE i64 most_elements() const { return elements(); }

  struct Held {
    Vector<float, kWidth> in_x;
    KF_DEVICE void forget() { device::forget(in_x); }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at, const Line& corner, int column) const {
    Held v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_x), at.count);
    return v;
  }
  template <int kN>
  static KF_DEVICE void uncross(Held (&rows)[kN]) {
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_x + first, elements * 4);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }
  static constexpr int kHeldBytes = 16;
  KF_DEVICE void start(const Line& line, const At& at, char* stage, int slots, int slot, bool valid) const {
    start_own_copy<16>(stage + 0 * slots + slot * 16, line.in_x + at.first, valid);
  }
  KF_DEVICE Held take(const char* stage, int slots, int slot) const {
    Held v;
    v.in_x = *reinterpret_cast<const Vector<float, kWidth>*>(stage + 0 * slots + slot * 16);
    return v;
  }
  static constexpr int kKeptBytes = 0;
  KF_DEVICE void keep(const Line& line, char* areas, int room, int row) const {
  }
  KF_DEVICE Line kept(Line line, const char* areas, int room, int row) const {
    return line;
  }

  struct Column0 {
    static constexpr bool kNothing = false, kSymmetric = true;
    Shifted<float> max_1;
    KF_DEVICE void merge(const Column0& b) {
      max_1.merge(b.max_1);
    }
    KF_DEVICE void settle() {
      max_1.settle();
    }
  };
  using Partial0 = Columns<Column0, kWidth>;
  static KF_DEVICE Partial0 partial(Sweep<0>) {
    Partial0 v;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
      }
    return v;
  }

  struct Fetched0 {
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at, const Line& corner, int column) const {
    Fetched0 v{};
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

  using Partial1 = Nothing;
  static KF_DEVICE Nothing partial(Sweep<1>) { return {}; }

  struct Fetched1 {
  };
  KF_DEVICE Fetched1 fetch(Sweep<1>, const Line& line, const At& at, const Line& corner, int column) const {
    Fetched1 v{};
    return v;
  }
  template <int kN>
  static KF_DEVICE void uncross(Fetched1 (&rows)[kN]) {
  }

  struct Crossed1 {
  };
  static KF_DEVICE Crossed1 crossed(Sweep<1>) { return {}; }
  template <int kN>
  static KF_DEVICE void uncross(Crossed1 (&rows)[kN]) {
  }
  KF_DEVICE void store(const Line& corner, const At& at, int column, const Crossed1& crossed) const {
  }

  struct Values {
    float max_1[kWidth];
    float sum_4[kWidth];
    Divisor<float> by_sum_4[kWidth];
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
    }
    return values;
  }

  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      part.column[j].max_1.look(in_x);  // softmax.max
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      part.column[j].max_1.looked(1);
    }
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part, Crossed0& crossed) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      part.column[j].max_1.add(in_x);  // softmax.max
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values.max_1[j] = part.column[j].max_1.largest;  // softmax.max
      values.sum_4[j] = part.column[j].max_1.total();  // softmax.sum
      values.by_sum_4[j] = Divisor<float>(values.sum_4[j]);
    }
  }

  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const Held& held, const Fetched1& in, const Values& values, Partial1& part, Crossed1& crossed) const {
    float out_result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float subtract_2 = in_x - values.max_1[j];  // softmax.subtract
      const float exp_3 = exp(subtract_2);  // softmax.exp
      const float divide_5 = quotient(exp_3, values.by_sum_4[j]);  // result
      out_result[j] = divide_5;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
    }
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    kf_softmax(const __grid_constant__ Parameters p) {
  tiles<Fused, 16, TileShape<8, 4, 4, 5>>(Fused{p}, p.geometry, p.standing);
}

}  // namespace kfusion::device::scalar

// grid: (264, 1, 1)
// block: (16, 16, 1)
// cluster: 8
// shared_bytes: 108608
// resident: True
// standing_bytes: 16
