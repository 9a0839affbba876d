// layernorm
#include "device/weighted.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  const float* in_weight;
  float* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  alignas(8) float scalar_5;
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
  static constexpr bool kWhole = true, kFetches = false;
  static constexpr int kBefore = 0, kBehind = 0;
  const Parameters& p;

  KF_DEVICE i64 elements() const { return p.inner.size; }
  KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }

  using Planes = device::Planes<1, kWidth, 288, true>;

  struct Line {
    const float* in_x;
    const float* in_weight;
    float* out_result;
    Frame<Index> frame;
    Planes planes;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_x = p.in_x + (row.at[0] * p.row_stride0_of_in_x);
    line.in_weight = p.in_weight;
    line.out_result = p.out_result + (row.at[0] * p.row_stride0_of_out_result);
    line.frame = frame_of<kWidth, kBefore, kBehind>(line.out_result, static_cast<Index>(p.inner.size));
    return line;
  }
  static constexpr int kEdges = edges_of(kWidth, kBefore, kBehind);
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return framed_place(line.frame, first, kWidth); }
  KF_DEVICE At edge([[maybe_unused]] const Line& line, int i) const { return edge_place(line.frame, static_cast<Index>(p.inner.size), i); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return line.frame.body; }
  KF_DEVICE i64 most_elements() const { return most_of_body(p.inner.size, kWidth, kBehind); }

  template <int kN = kWidth>
  struct HeldOf {
    Vector<float, kN> in_x;
    KF_DEVICE void forget() { device::forget(in_x); }
    KF_DEVICE void take_note_of([[maybe_unused]] const HeldOf& first) {}
  };
  using Held = HeldOf<>;
  using Edge = HeldOf<1>;
  template <int kN = kWidth>
  KF_DEVICE HeldOf<kN> load(const Line& line, const At& at) const {
    HeldOf<kN> v{};
    v.in_x = load_vector<kN, kWhole, Use::kAgain>(at.in(line.in_x), at.count);
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_x + first, elements * 4);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }
  KF_DEVICE Planes::Own entry(const Line& line, Index element) const {
    Planes::Own entry;
    entry.word[0] = __float_as_uint(get(load_vector<1, true, Use::kAgain>(line.in_weight + element, 1), 0));
    return entry;
  }

  struct Partial0 {
    static constexpr bool kNothing = false, kSymmetric = false;
    Centred<float> mean_1;
    KF_DEVICE void merge(const Partial0& b) {
      mean_1.merge(b.mean_1);
    }
    template <class Across>
    KF_DEVICE void merge_across(const Across& across) {
      mean_1.merge_across(across);
    }
    KF_DEVICE void settle() {
      mean_1.settle();
    }
  };
  static KF_DEVICE Partial0 partial(Sweep<0>) {
    Partial0 v;
    return v;
  }

  template <int kN = kWidth>
  struct Fetched0Of {
  };
  using Fetched0 = Fetched0Of<>;
  template <int kN = kWidth>
  KF_DEVICE Fetched0Of<kN> fetch(Sweep<0>, const Line& line, const At& at) const {
    Fetched0Of<kN> v{};
    return v;
  }

  using Partial1 = Nothing;
  static KF_DEVICE Nothing partial(Sweep<1>) { return {}; }

  template <int kN = kWidth>
  struct Fetched1Of {
    Vector<float, kN> in_weight;
  };
  using Fetched1 = Fetched1Of<>;
  template <int kN = kWidth>
  KF_DEVICE Fetched1Of<kN> fetch(Sweep<1>, const Line& line, const At& at) const {
    Fetched1Of<kN> v{};
    v.in_weight = line.planes.load<0, kN>(line.in_weight, line.frame, at);
    return v;
  }

  struct Values {
    float mean_1;
    float mean_4;
    float add_6;
    float rsqrt_7;
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
    return values;
  }

  template <int kN = kWidth>
  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const HeldOf<kN>& held, const Fetched0Of<kN>& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float in_x = get(held.in_x, j);  // x
      part.mean_1.look(in_x);  // layernorm.mean
    }
    part.mean_1.looked(kN);
  }

  template <int kN = kWidth>
  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const HeldOf<kN>& held, const Fetched0Of<kN>& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float in_x = get(held.in_x, j);  // x
      part.mean_1.add(in_x);  // layernorm.mean
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.mean_1 = part.mean_1.mean;  // layernorm.mean
    values.mean_4 = share_of(part.mean_1.squares(), float(static_cast<i64>(p.inner.size)));  // layernorm.var
    values.add_6 = values.mean_4 + p.scalar_5;  // layernorm.scale.add
    values.rsqrt_7 = quick_rsqrt(values.add_6);  // layernorm.scale.rsqrt
  }

  template <int kN = kWidth>
  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const HeldOf<kN>& held, const Fetched1Of<kN>& in, const Values& values, Partial1& part) const {
    float out_result[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float subtract_2 = in_x - values.mean_1;  // layernorm.var.subtract
      const float multiply_8 = subtract_2 * values.rsqrt_7;  // layernorm.scale.multiply
      const float in_weight = get(in.in_weight, j);  // weight
      const float multiply_10 = in_weight * multiply_8;  // result
      out_result[j] = multiply_10;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(512, 2)
    kf_layernorm(const __grid_constant__ Parameters p) {
  weighted_rows<Fused, 32, 2, 4>(Fused{p}, p.geometry, p.standing);
}

}  // namespace kfusion::device::scalar

// grid: (264, 1, 1)
// block: (512, 1, 1)
// cluster: 1
// shared_bytes: 8704
// resident: True
// standing_bytes: 16
