// softmax
#include "device/rows.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  float* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  Axes<int, 1> inner;
  Axes<int, 1> outer;
  Geometry geometry;
};

struct Fused {
  using Index = int;
  using Row = int;
  using At = Place<Index, 1>;
  static constexpr int kWidth = 4, kSweeps = 2;
  static constexpr bool kLooks[] = {true, false}, kBatches[] = {false, false};
  static constexpr bool kWhole = true, kFetches = false;
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
    float shift;  // of the exponentials kept instead
    KF_DEVICE void forget() { device::forget(in_x); }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) { shift = first.shift; }
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at) const {
    Held v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_x), at.count);
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_x + first, elements * 4);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }

  struct Partial0 {
    static constexpr bool kNothing = false, kSymmetric = true;
    Shifted<float> max_1;
    KF_DEVICE void merge(const Partial0& b) {
      max_1.merge(b.max_1);
    }
    template <class Across>
    KF_DEVICE void merge_across(const Across& across) {
      max_1.merge_across(across);
    }
    KF_DEVICE void settle() {
      max_1.settle();
    }
  };
  static KF_DEVICE Partial0 partial(Sweep<0>) {
    Partial0 v;
    return v;
  }

  struct Fetched0 {
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at) const {
    Fetched0 v{};
    return v;
  }

  using Partial1 = Nothing;
  static KF_DEVICE Nothing partial(Sweep<1>) { return {}; }

  struct Fetched1 {
  };
  KF_DEVICE Fetched1 fetch(Sweep<1>, const Line& line, const At& at) const {
    Fetched1 v{};
    return v;
  }

  struct Values {
    float max_1;
    float sum_4;
    Divisor<float> by_sum_4;
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
    return values;
  }

  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      part.max_1.look(in_x);  // softmax.max
    }
    part.max_1.looked(kWidth);
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
    float kept[kWidth] = {};
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      kept[j] = part.max_1.add(in_x);  // softmax.max
    }
    held.in_x = pack_vector<float>(kept);
    held.shift = part.max_1.largest;
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.max_1 = part.max_1.largest;  // softmax.max
    values.sum_4 = part.max_1.total();  // softmax.sum
    values.by_sum_4 = Divisor<float>(values.sum_4);
  }

  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const Held& held, const Fetched1& in, const Values& values, Partial1& part) const {
    float out_result[kWidth];
    const float factor = quotient(Shifted<float>::scale(held.shift, values.max_1), values.by_sum_4);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float divide_5 = get(held.in_x, j) * factor;  // result
      out_result[j] = divide_5;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(128, 8)
    kf_softmax(const __grid_constant__ Parameters p) {
  team_rows<Fused, 8, false>(Fused{p}, p.geometry);
}

}  // namespace kfusion::device::scalar

// grid: (4096, 1, 1)
// block: (128, 1, 1)
// cluster: 1
// shared_bytes: 64
