// layernorm
#include "device/weighted.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const bfloat16_t* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  const bfloat16_t* in_weight;
  const bfloat16_t* in_bias;
  bfloat16_t* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  alignas(8) float scalar_7;
  Axes<int, 1> inner;
  Axes<int, 1> outer;
  Geometry geometry;
  char* standing;
};

struct Fused {
  using Index = int;
  using Row = int;
  using At = Place<Index, 1>;
  static constexpr int kWidth = 8, kSweeps = 2;
  static constexpr bool kLooks[] = {true, false}, kBatches[] = {false, false};
  static constexpr bool kWhole = true, kFetches = false;
  static constexpr int kBefore = 0, kBehind = 0;
  const Parameters& p;

  KF_DEVICE i64 elements() const { return p.inner.size; }
  KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }

  using Planes = device::Planes<2, kWidth, 160, true>;

  struct Line {
    const bfloat16_t* in_x;
    const bfloat16_t* in_weight;
    const bfloat16_t* in_bias;
    bfloat16_t* out_result;
    Frame<Index> frame;
    Planes planes;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_x = p.in_x + (row.at[0] * p.row_stride0_of_in_x);
    line.in_weight = p.in_weight;
    line.in_bias = p.in_bias;
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
    Vector<bfloat16_t, kN> in_x;
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
    prefetch_to_l2(line.in_x + first, elements * 2);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
  }
  KF_DEVICE Planes::Own entry(const Line& line, Index element) const {
    Planes::Own entry;
    entry.word[0] = __float_as_uint(get(load_vector<1, true, Use::kAgain>(line.in_weight + element, 1), 0));
    entry.word[1] = __float_as_uint(get(load_vector<1, true, Use::kAgain>(line.in_bias + element, 1), 0));
    return entry;
  }

  struct Partial0 {
    static constexpr bool kNothing = false, kSymmetric = false;
    Centred<float> mean_2;
    KF_DEVICE void merge(const Partial0& b) {
      mean_2.merge(b.mean_2);
    }
    template <class Across>
    KF_DEVICE void merge_across(const Across& across) {
      mean_2.merge_across(across);
    }
    KF_DEVICE void settle() {
      mean_2.settle();
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
    Vector<float, kN> in_bias;
  };
  using Fetched1 = Fetched1Of<>;
  template <int kN = kWidth>
  KF_DEVICE Fetched1Of<kN> fetch(Sweep<1>, const Line& line, const At& at) const {
    Fetched1Of<kN> v{};
    v.in_weight = line.planes.load<0, kN>(line.in_weight, line.frame, at);
    v.in_bias = line.planes.load<1, kN>(line.in_bias, line.frame, at);
    return v;
  }

  struct Values {
    float mean_2;
    float mean_5;
    float add_8;
    float rsqrt_9;
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
      const float cast_1 = convert<float>(in_x);  // layernorm.mean.cast
      part.mean_2.look(cast_1);  // layernorm.mean
    }
    part.mean_2.looked(kN);
  }

  template <int kN = kWidth>
  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const HeldOf<kN>& held, const Fetched0Of<kN>& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float cast_1 = convert<float>(in_x);  // layernorm.mean.cast
      part.mean_2.add(cast_1);  // layernorm.mean
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.mean_2 = part.mean_2.mean;  // layernorm.mean
    values.mean_5 = share_of(part.mean_2.squares(), float(static_cast<i64>(p.inner.size)));  // layernorm.var
    values.add_8 = values.mean_5 + p.scalar_7;  // layernorm.scale.add
    values.rsqrt_9 = quick_rsqrt(values.add_8);  // layernorm.scale.rsqrt
  }

  template <int kN = kWidth>
  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const HeldOf<kN>& held, const Fetched1Of<kN>& in, const Values& values, Partial1& part) const {
    float out_result[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float in_x = get(held.in_x, j);  // x
      const float cast_1 = convert<float>(in_x);  // layernorm.mean.cast
      const float subtract_3 = cast_1 - values.mean_2;  // layernorm.var.subtract
      const float cast_10 = convert<float>(subtract_3);  // layernorm.scale.cast
      const float multiply_11 = values.rsqrt_9 * cast_10;  // layernorm.scale.multiply
      const float in_weight = get(in.in_weight, j);  // weight
      const float cast_13 = convert<float>(in_weight);  // layernorm.scale.cast_2
      const float multiply_14 = multiply_11 * cast_13;  // layernorm.scale.multiply_2
      const float in_bias = get(in.in_bias, j);  // bias
      const float cast_16 = convert<float>(in_bias);  // layernorm.scale.cast_3
      const float add_17 = multiply_14 + cast_16;  // layernorm.scale.add_2
      const float cast_18 = rounded<bfloat16_t>(add_17);  // result
      out_result[j] = add_17;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<bfloat16_t>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(512, 2)
    kf_layernorm(const __grid_constant__ Parameters p) {
  weighted_rows<Fused, 32, 1, 4>(Fused{p}, p.geometry, p.standing);
}

}  // namespace kfusion::device::scalar

// grid: (264, 1, 1)
// block: (512, 1, 1)
// cluster: 1
// shared_bytes: 19968
// resident: True
// standing_bytes: 16
