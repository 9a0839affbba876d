// take_add_layernorm
#include "device/rows.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const i64* in_ids;
  alignas(8) i64 row_stride0_of_in_ids;
  const float* in_places;
  alignas(8) i64 row_stride1_of_in_places;
  const float* in_weight;
  const float* in_bias;
  const float* table_words;
  alignas(8) i64 positions_of_table_words;
  alignas(8) i64 step_of_table_words;
  float* out_result;
  alignas(8) i64 row_stride0_of_out_result;
  alignas(8) i64 row_stride1_of_out_result;
  alignas(8) float scalar_8;
  Axes<int, 1> inner;
  Axes<int, 2> outer;
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
    const i64* in_ids;
    const float* in_places;
    const float* in_weight;
    const float* in_bias;
    const float* table_words;
    float* out_result;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_ids = p.in_ids + (row.at[0] * p.row_stride0_of_in_ids + row.at[1]);
    line.in_places = p.in_places + (row.at[1] * p.row_stride1_of_in_places);
    line.in_weight = p.in_weight;
    line.in_bias = p.in_bias;
    line.table_words = p.table_words;
    line.out_result = p.out_result + (row.at[0] * p.row_stride0_of_out_result + row.at[1] * p.row_stride1_of_out_result);
    return line;
  }
  static constexpr int kEdges = 0;
  KF_DEVICE At place([[maybe_unused]] const Line& line, Index first) const { return place(first); }
  KF_DEVICE i64 elements([[maybe_unused]] const Line& line) const { return elements(); }
  KF_DEVICE i64 most_elements() const { return elements(); }

  struct Held {
    Vector<float, kWidth> in_places;
    KF_DEVICE void forget() { device::forget(in_places); }
    KF_DEVICE void take_note_of([[maybe_unused]] const Held& first) {}
  };
  using Edge = Held;
  KF_DEVICE Held load(const Line& line, const At& at) const {
    Held v{};
    v.in_places = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_places), at.count);
    return v;
  }
  KF_DEVICE void prefetch(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_places + first, elements * 4);
  }
  KF_DEVICE void prefetch_fetched(const Line& line, Index first, int elements) const {
    prefetch_to_l2(line.in_weight + first, elements * 4);
    prefetch_to_l2(line.in_bias + first, elements * 4);
  }

  struct Partial0 {
    static constexpr bool kNothing = false, kSymmetric = false;
    Centred<float> mean_4;
    KF_DEVICE void merge(const Partial0& b) {
      mean_4.merge(b.mean_4);
    }
    template <class Across>
    KF_DEVICE void merge_across(const Across& across) {
      mean_4.merge_across(across);
    }
    KF_DEVICE void settle() {
      mean_4.settle();
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
    Vector<float, kWidth> in_weight;
    Vector<float, kWidth> in_bias;
  };
  KF_DEVICE Fetched1 fetch(Sweep<1>, const Line& line, const At& at) const {
    Fetched1 v{};
    v.in_weight = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_weight), at.count);
    v.in_bias = load_vector<kWidth, kWhole, Use::kAgain>(at.in(line.in_bias), at.count);
    return v;
  }

  struct Values {
    i64 in_ids;
    float mean_4;
    float mean_7;
    float add_9;
    float rsqrt_10;
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
    const auto loaded_in_ids = load_vector<1, true, Use::kAgain>(line.in_ids, 1);
    values.in_ids = get(loaded_in_ids, 0);  // ids
    return values;
  }

  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
    const auto all_take_1 = taken_vector<kWidth, kWhole>(at.in(line.table_words), Positions<true>{p.positions_of_table_words, p.step_of_table_words}, values.in_ids, at.count);  // take
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float take_1 = get(all_take_1, j);  // take
      const float in_places = get(held.in_places, j);  // places
      const float add_3 = in_places + take_1;  // add
      part.mean_4.look(add_3);  // layernorm.mean
    }
    part.mean_4.looked(kWidth);
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
    const auto all_take_1 = taken_vector<kWidth, kWhole>(at.in(line.table_words), Positions<true>{p.positions_of_table_words, p.step_of_table_words}, values.in_ids, at.count);  // take
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float take_1 = get(all_take_1, j);  // take
      const float in_places = get(held.in_places, j);  // places
      const float add_3 = in_places + take_1;  // add
      part.mean_4.add(add_3);  // layernorm.mean
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.mean_4 = part.mean_4.mean;  // layernorm.mean
    values.mean_7 = share_of(part.mean_4.squares(), float(static_cast<i64>(p.inner.size)));  // layernorm.var
    values.add_9 = values.mean_7 + p.scalar_8;  // layernorm.scale.add
    values.rsqrt_10 = quick_rsqrt(values.add_9);  // layernorm.scale.rsqrt
  }

  KF_DEVICE void sweep(Sweep<1>, const Line& line, const At& at, const Held& held, const Fetched1& in, const Values& values, Partial1& part) const {
    float out_result[kWidth];
    const auto all_take_1 = taken_vector<kWidth, kWhole>(at.in(line.table_words), Positions<true>{p.positions_of_table_words, p.step_of_table_words}, values.in_ids, at.count);  // take
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float take_1 = get(all_take_1, j);  // take
      const float in_places = get(held.in_places, j);  // places
      const float add_3 = in_places + take_1;  // add
      const float subtract_5 = add_3 - values.mean_4;  // layernorm.var.subtract
      const float multiply_11 = subtract_5 * values.rsqrt_10;  // layernorm.scale.multiply
      const float in_weight = get(in.in_weight, j);  // weight
      const float multiply_13 = in_weight * multiply_11;  // layernorm.scale.multiply_2
      const float in_bias = get(in.in_bias, j);  // bias
      const float add_15 = in_bias + multiply_13;  // result
      out_result[j] = add_15;
    }
    store_vector<kWhole>(at.in(line.out_result), pack_vector<float>(out_result), at.count);
  }
  KF_DEVICE void finish(Sweep<1>, Values& values, const Partial1& part) const {
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
  }
};

extern "C" __global__ void __launch_bounds__(64, 16)
    kf_take_add_layernorm(const __grid_constant__ Parameters p) {
  team_rows<Fused, 4, false>(Fused{p}, p.geometry);
}

}  // namespace kfusion::device::scalar

// grid: (4096, 1, 1)
// block: (64, 1, 1)
// cluster: 1
// shared_bytes: 64
