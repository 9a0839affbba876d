// layernorm
#include "device/rows.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_x;
  alignas(8) i64 row_stride0_of_in_x;
  float* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  alignas(8) float scalar_5;
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
  static constexpr bool kWhole = true, kFetches = true;
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
    KF_DEVICE void forget() { }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at) const {
    Held v{};
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_x + first, elements * 4);
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

  struct Fetched0 {
    Vector<float, kWidth> in_x;
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at) const {
    Fetched0 v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_x), at.count);
    return v;
  }

  using Partial1 = Nothing;
  static KF_DEVICE Nothing partial(Sweep<1>) { return {}; }

  struct Fetched1 {
    Vector<float, kWidth> in_x;
  };
  KF_DEVICE Fetched1 fetch(Sweep<1>, const Line& line, const At& at) const {
    Fetched1 v{};
    v.in_x = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_x), at.count);
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

  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(in.in_x, j);  // x
      part.mean_1.look(in_x);  // layernorm.mean
    }
    part.mean_1.looked(kWidth);
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(in.in_x, j);  // x
      part.mean_1.add(in_x);  // layernorm.mean
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.mean_1 = part.mean_1.mean;  // layernorm.mean
    values.mean_4 = share_of(part.mean_1.squares(), float(static_cast<i64>(p.inner.size)));  // layernorm.var
    values.add_6 = values.mean_4 + p.scalar_5;  // layernorm.scale.add
    values.rsqrt_7 = quick_rsqrt(values.add_6);  // layernorm.scale.rsqrt
  }

  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const Held& held, const Fetched1& in, const Values& values, Partial1& part) const {
    float out_result[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_x = get(in.in_x, j);  // x
      const float subtract_2 = in_x - values.mean_1;  // layernorm.var.subtract
      const float multiply_8 = subtract_2 * values.rsqrt_7;  // result
      out_result[j] = multiply_8;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(256, 2)
    kf_layernorm(const __grid_constant__ Parameters p) {
  long_rows<Fused, 4>(Fused{p}, p.geometry);
}

}  // namespace kfusion::device::scalar

// grid: (32768, 1, 1)
// block: (256, 1, 1)
// cluster: 8
// shared_bytes: 1536
