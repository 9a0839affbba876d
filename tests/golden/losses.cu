// cross_entropy
#include "device/rows.cuh"

namespace kfusion::device::scalar {

struct Parameters {
  const float* in_logits;
  alignas(8) i64 row_stride0_of_in_logits;
  const i64* in_targets;
  const float* table_logits;
  alignas(8) i64 row_stride0_of_table_logits;
  alignas(8) i64 positions_of_table_logits;
  alignas(8) i64 step_of_table_logits;
  float* out_result;
  alignas(8) i64 scalar_7;
  alignas(8) i64 scalar_9;
  alignas(8) i64 scalar_16;
  alignas(8) float scalar_18;
  alignas(8) float scalar_21;
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
  static constexpr bool kLooks[] = {true}, kBatches[] = {false};
  static constexpr bool kWhole = true, kFetches = true;
  const Parameters& p;

  KF_DEVICE i64 elements() const { return p.inner.size; }
  KF_DEVICE At place(Index first) const { return device::place(p.inner, first, kWidth); }

  struct Line {
    const float* in_logits;
    const i64* in_targets;
    const float* table_logits;
    float* out_result;
  };
  KF_DEVICE Line line(Row number) const {
    [[maybe_unused]] const auto row = device::place(p.outer, number, 1);
    Line line;
    line.in_logits = p.in_logits + (row.at[0] * p.row_stride0_of_in_logits);
    line.in_targets = p.in_targets + (row.at[0]);
    line.table_logits = p.table_logits + (row.at[0] * p.row_stride0_of_table_logits);
    line.out_result = p.out_result + (row.at[0]);
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
    Vector<float, kWidth> in_logits;
  };
  KF_DEVICE Fetched0 fetch(Sweep<0>, const Line& line, const At& at) const {
    Fetched0 v{};
    v.in_logits = load_vector<kWidth, kWhole, Use::kOnce>(at.in(line.in_logits), at.count);
    return v;
  }

  struct Values {
    float max_1;
    float sum_4;
    float log_5;
    i64 in_targets;
    u8 greater_equal_8;
    u8 less_10;
    u8 logical_and_11;
    i64 where_12;
    float take_along_axis_13;
    float subtract_14;
    float subtract_15;
    u8 equal_17;
    float where_19;
    u8 logical_or_20;
    float where_22;
  };
  KF_DEVICE Values begin(const Line& line, const At& at) const {
    Values values{};
    const auto loaded_in_targets = load_vector<1, true, Use::kAgain>(line.in_targets, 1);
    values.in_targets = get(loaded_in_targets, 0);  // targets
    values.greater_equal_8 = values.in_targets >= p.scalar_7;  // cross_entropy.pick.greater_equal
    values.less_10 = values.in_targets < p.scalar_9;  // cross_entropy.pick.less
    values.logical_and_11 = (values.greater_equal_8 && values.less_10) != 0;  // cross_entropy.pick.logical_and
    values.where_12 = select(values.logical_and_11, values.in_targets, p.scalar_7);  // cross_entropy.pick.where
    values.take_along_axis_13 = taken(line.table_logits, Positions<true>{p.positions_of_table_logits, p.step_of_table_logits}, values.where_12, true);  // cross_entropy.pick.take_along_axis
    values.equal_17 = values.in_targets == p.scalar_16;  // cross_entropy.pick.equal
    values.logical_or_20 = (values.logical_and_11 || values.equal_17) != 0;  // cross_entropy.pick.logical_or
    return values;
  }

  KF_DEVICE void look(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_logits = get(in.in_logits, j);  // logits
      part.max_1.look(in_logits);  // cross_entropy.logsumexp.max
    }
    part.max_1.looked(kWidth);
  }

  KF_DEVICE void sweep(Sweep<0>, const Line& line, const At& at, const Held& held, const Fetched0& in, const Values& values, Partial0& part) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float in_logits = get(in.in_logits, j);  // logits
      part.max_1.add(in_logits);  // cross_entropy.logsumexp.max
    }
  }
  KF_DEVICE void finish(Sweep<0>, Values& values, const Partial0& part) const {
    values.max_1 = part.max_1.largest;  // cross_entropy.logsumexp.max
    values.sum_4 = part.max_1.total();  // cross_entropy.logsumexp.sum
    values.log_5 = log(values.sum_4);  // cross_entropy.logsumexp
    values.subtract_14 = values.take_along_axis_13 - values.max_1;  // cross_entropy.pick.subtract
    values.subtract_15 = values.log_5 - values.subtract_14;  // cross_entropy.pick.subtract_2
    values.where_19 = select(values.equal_17, p.scalar_18, values.subtract_15);  // cross_entropy.pick.where_2
    values.where_22 = select(values.logical_or_20, values.where_19, p.scalar_21);  // result
  }
  KF_DEVICE void end(const Line& line, const At& at, const Values& values) const {
    float out_result[1] = {values.where_22};
    store_vector<true>(line.out_result, pack_vector<float>(out_result), 1);
  }
};

extern "C" __global__ void __launch_bounds__(256, 8)
    kf_cross_entropy(const __grid_constant__ Parameters p) {
  split_rows<Fused, 2>(Fused{p}, p.geometry, p.workspace, p.standing);
}

}  // namespace kfusion::device::scalar

// grid: (4096, 1, 1)
// block: (256, 1, 1)
// cluster: 1
// shared_bytes: 128
