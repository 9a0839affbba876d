// softmax_sum
#include "device/summed_ring.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  float* out_result_0;
  alignas(8) i64 row_stride0_of_out_result_0;
  float* out_sum_partial_sums;
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
    float* out_result_0;
    float* out_sum_partial_sums;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_x = p.in_x + (row.at[0] * p.row_stride0_of_in_x);
    line.out_result_0 = p.out_result_0 + (row.at[0] * p.row_stride0_of_out_result_0);
    line.out_sum_partial_sums = p.out_sum_partial_sums;
    return line;
  }
  static constexpr int kEdges = 0;
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return place(first); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return elements(); }
  KF_DEVICE i64 most_elements() const { return elements(); }

  struct Held {
    Vector<float, kWidth> in_x;
    struct alignas(8) Sums {
      float out_sum_partial_sums[kWidth];
      KF_DEVICE void add(const Sums& o) {
        for (int j = 0; j < kWidth; ++j) out_sum_partial_sums[j] += o.out_sum_partial_sums[j];
      }
    } sums;
    KF_DEVICE void forget() { device::forget(in_x); }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at) const {
    Held v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_x), at.count);
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_x + first, elements * 4);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }
  static constexpr int kHeldBytes = 16;
  KF_DEVICE void start(const Line& line, Index first, int elements, char* stage, int vectors, Barrier* barrier) const {
      expect(barrier, elements * (kHeldBytes / kWidth));
    if (elements == 0) return;  // a copy of nothing is none
    start_copy(stage + 0 * vectors, line.in_x + first, elements * 4, barrier);
  }
  KF_DEVICE Held take(const char* stage, int vectors, int vector) const {
    Held v;
    v.in_x = *reinterpret_cast<const Vector<float, kWidth>*>(stage + 0 * vectors + vector * 16);
    return v;
  }
  static constexpr int kSharedBytes = 0;

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
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      held.sums.out_sum_partial_sums[j] = held.sums.out_sum_partial_sums[j] + convert<float>(in_x);
      part.max_1.add(in_x);  // softmax.max
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.max_1 = part.max_1.largest;  // softmax.max
    values.sum_4 = part.max_1.total();  // softmax.sum
    values.by_sum_4 = Divisor<float>(values.sum_4);
  }

  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const Held& held, const Fetched1& in, const Values& values, Partial1& part) const {
    float out_result_0[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float subtract_2 = in_x - values.max_1;  // softmax.subtract
      const float exp_3 = exp(subtract_2);  // softmax.exp
      const float divide_5 = quotient(exp_3, values.by_sum_4);  // result[0]
      out_result_0[j] = divide_5;
    }
    store_vector<kWhole>(at.in(line.out_result_0), pack_vector<float>(out_result_0), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
  KF_DEVICE void put_sums(const Line& line, const At& at, const Held& held, i64 part) const {
    store_run(line.out_sum_partial_sums + part * elements() + at.first, held.sums.out_sum_partial_sums);
  }
};

extern "C" __global__ void __launch_bounds__(544, 1)
    kf_softmax_sum(const __grid_constant__ Parameters p) {
  summed_ring_rows<Fused, SummedRing{2, 1, 16, 16, 4, 32, 48, 2}>(Fused{p}, p.geometry);
}

}  // namespace kfusion::device::scalar

// grid: (132, 1, 1)
// block: (544, 1, 1)
// cluster: 1
// shared_bytes: 67120
