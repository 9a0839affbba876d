// ReLU + LayerNorm as the five kernels of an array library, for one dtype: each pass over the matrix goes through
// memory. Instantiated in relu_layernorm_<dtype>.cu.
//   relu (read, write)   mean (read)   var (read)   centre (read, write)   scale (read, write)
#pragma once
#include <utility>

#include "kernels/relu_layernorm.cuh"
#include "kernels/relu_layernorm.hpp"
#include "kernels/row_launch.cuh"

namespace kfusion::device {

inline constexpr int kUnfusedSlots = 4;
inline constexpr int kMapThreads = 256;

/// y[r, c] = op(x[r, c]) with what the op knows of row r and column c: relu, centre, scale.
/// Block: 256 threads, in groups of `lanes` per row; blockIdx.x over the rows, blockIdx.y over the segments of a row.
/// Barriers: none. Bytes: one read, one write of the matrix. Reason to exist: what a library's elementwise kernel does.
template <class T, class Access, class Op>
__global__ void __launch_bounds__(kMapThreads)
    row_map(const __grid_constant__ Rows m, const __grid_constant__ Op op, const __grid_constant__ int lanes) {
  constexpr int kN = kLanes<T>;
  const int lane = threadIdx.x & (lanes - 1), rows_per_block = kMapThreads / lanes;
  const int segment = kUnfusedSlots * kN * lanes;
  const i64 step = static_cast<i64>(gridDim.x) * rows_per_block;
  for (i64 r = static_cast<i64>(blockIdx.x) * rows_per_block + threadIdx.x / lanes; r < m.rows; r += step) {
    const RowPointers row = locate(m, r);
    const typename Op::Row state = op.row(r);
    for (i64 begin = static_cast<i64>(blockIdx.y) * segment; begin < m.cols; begin += gridDim.y * i64{segment}) {
      const Span s{begin, static_cast<int>(minimum<i64>(m.cols - begin, segment)), lane, lanes};
      Slot held[kUnfusedSlots];
      Access::load(held, row.x, m.x_col, s);
#pragma unroll
      for (int k = 0; k < kUnfusedSlots; ++k) {
        Compute<T> v[kN];
        unpack<T>(held[k], v);
        op.template output<Access>(v, state, s, k);
        Access::template store<Store::kKeep>(pack<T>(v), row.y, m.y_col, s, k);
      }
    }
  }
}

/// result[r] = sum over c of op.value(x[r, c]) / cols: mean, var.
/// Block: up to 256 threads; a team of them (in a cluster for long or few rows) per row, as in row_kernel. Barriers:
/// one per row where several warps share it. Bytes: one read of the matrix. Reason to exist: a library's row reduction.
template <class T, class Access, bool kWarpRows, class Op>
__global__ void __launch_bounds__(kWarpRows ? kWarpRowsThreads : kMaxThreads)
    row_mean(const __grid_constant__ Rows m, const __grid_constant__ Op op, const __grid_constant__ Geometry g) {
  using C = Compute<T>;
  extern __shared__ __align__(16) char shared[];
  const Team<kWarpRows ? Fit::kWarp : Fit::kChunks, kUnfusedSlots * kLanes<T>, kWarpRows> team(g);
  Exchange exchange(shared + g.exchange_at, team.warps * static_cast<int>(sizeof(C)));
  for (i64 first = team.first; first < m.rows; first += team.step) {
    const bool exists = first + team.sub_row < m.rows;
    const i64 r = exists ? first + team.sub_row : first;
    const char* const x = locate(m, r).x;
    const typename Op::Row state = op.row(r);
    C sum = 0;
    for (int chunk = 0; chunk < team.chunks; ++chunk) {
      const Span s = team.span(chunk, exists ? m.cols : 0);
      Slot held[kUnfusedSlots];
      Access::load(held, x, m.x_col, s);
      sum += held_sum<T, Access>(held, s, [&](C part, C v) { return part + op.value(v, state); });
    }
    sum = group_sum(sum, team.lanes);
    if constexpr (!kWarpRows) {
      const C* parts = exchange.share(sum, team.warp);
      sum = 0;
      for (int w = threadIdx.x % 32; w < team.warps; w += 32) sum += parts[w];
      sum = group_sum(sum);
    }
    if (exists && team.lane == 0 && team.warp == 0) op.result[r] = sum / C(m.cols);
  }
  exchange.finish();
}

// ---- the five -------------------------------------------------------------------------------------------------------

template <class T>
struct Relu {
  struct Row {};
  KF_DEVICE Row row(i64) const { return {}; }
  template <class Access>
  KF_DEVICE void output(Compute<T> (&v)[kLanes<T>], const Row&, const Span&, int) const {
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] = relu(v[j]);
  }
};

template <class T>
struct Mean {
  struct Row {};
  Compute<T>* result;
  KF_DEVICE Row row(i64) const { return {}; }
  KF_DEVICE Compute<T> value(Compute<T> x, const Row&) const { return x; }
};

template <class T>
struct Variance {
  struct Row {
    Compute<T> mean;
  };
  const Compute<T>* mean;
  Compute<T>* result;
  KF_DEVICE Row row(i64 r) const { return {mean[r]}; }
  KF_DEVICE Compute<T> value(Compute<T> x, const Row& row) const { return (x - row.mean) * (x - row.mean); }
};

template <class T>
struct Centre {
  struct Row {
    Compute<T> mean;
  };
  const Compute<T>* mean;
  KF_DEVICE Row row(i64 r) const { return {mean[r]}; }
  template <class Access>
  KF_DEVICE void output(Compute<T> (&v)[kLanes<T>], const Row& row, const Span&, int) const {
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] -= row.mean;
  }
};

template <class T, class P>
struct Scale {
  struct Row {
    Compute<T> scale;
  };
  const Compute<T>* variance;
  Affine<T, P> parameters;
  Compute<T> eps;
  KF_DEVICE Row row(i64 r) const { return {Compute<T>(1) / square_root(variance[r] + eps)}; }
  template <class Access>
  KF_DEVICE void output(Compute<T> (&v)[kLanes<T>], const Row& row, const Span& s, int k) const {
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) v[j] *= row.scale;
    parameters.template apply<Access>(v, parameters.template fetch<Access>(s, k));
  }
};

}  // namespace kfusion::device

namespace kfusion::cuda {

template <class T, template <class> class Access, class Op>
void launch_map_as(const RowProblem& p, Op op, Stream stream) {
  constexpr std::int64_t kWidth = device::kUnfusedSlots * device::kLanes<T>, kMaxY = 65535;
  int lanes = 1;
  while (lanes < device::kMapThreads && lanes * kWidth < p.cols) lanes *= 2;
  device::Rows m = rows_of(p);
  void* arguments[] = {&m, &op, &lanes};
  const Launch one{reinterpret_cast<const void*>(&device::row_map<T, Access<T>, Op>), device::kMapThreads, 1, 0};
  launch(one, divide_up(p.rows, device::kMapThreads / lanes), arguments, stream,
         static_cast<int>(std::min(divide_up(p.cols, kWidth * lanes), kMaxY)));
}

/// A map over x -> y of `p`, whose op reads parameters in slots where `columns_in_slots`.
template <class T, class Op>
void launch_map(const RowProblem& p, const Op& op, Stream stream, bool columns_in_slots = true) {
  if (columns_in_slots && in_slots(p, p.x) && in_slots(p, p.y)) {
    launch_map_as<T, device::VectorAccess>(p, op, stream);
  } else {
    launch_map_as<T, device::StridedAccess>(p, op, stream);
  }
}

template <class T, template <class> class Access, class Op>
void launch_mean_as(const RowProblem& p, Op op, int device, Stream stream) {
  using namespace device;
  const void* of_warps = reinterpret_cast<const void*>(&row_mean<T, Access<T>, true, Op>);
  const void* of_teams = reinterpret_cast<const void*>(&row_mean<T, Access<T>, false, Op>);
  const RowConfig config =
      choose_reduction(p.rows, p.cols * static_cast<std::int64_t>(sizeof(T)), kUnfusedSlots,
                       max_blocks<std::pair<Access<T>, Op>>(of_teams, device), limits(device).multiprocessors);
  launch_rows<Compute<T>>(config.fit == Fit::kWarp ? of_warps : of_teams, config, 0, device, stream, rows_of(p), op);
}

template <class T, class Op>
void launch_mean(const RowProblem& p, const Op& op, int device, Stream stream) {
  if (in_slots(p, p.x)) {
    launch_mean_as<T, device::VectorAccess>(p, op, device, stream);
  } else {
    launch_mean_as<T, device::StridedAccess>(p, op, device, stream);
  }
}

/// A dense rows x cols matrix at `data`, as a library would allocate it.
inline RowOperand dense(std::byte* data, const RowProblem& p) {
  RowOperand m;
  m.data = data;
  m.col_stride = static_cast<std::int64_t>(item_bytes(p.dtype));
  std::int64_t stride = m.col_stride * p.cols;
  for (int d = p.outer_ndim - 1; d >= 0; --d) {
    m.outer_strides[d] = stride;
    stride *= p.outer_shape[d];
  }
  return m;
}

template <DType kType>
void unfused_relu_layernorm_of(const RowProblem& p, int device, Stream stream) {
  using T = typename ElementOf<kType>::type;
  using C = device::Compute<T>;
  const UseDevice use(device);
  const auto rows = static_cast<std::size_t>(p.rows), elements = rows * static_cast<std::size_t>(p.cols);
  const Workspace relu_data(elements * sizeof(T), device, stream), centred_data(elements * sizeof(T), device, stream);
  const Workspace mean_data(rows * sizeof(C), device, stream), variance_data(rows * sizeof(C), device, stream);
  C* const mean = reinterpret_cast<C*>(mean_data.data());
  C* const variance = reinterpret_cast<C*>(variance_data.data());

  RowProblem x_to_relu = p, relu_to_centred = p, centred_to_y = p;
  x_to_relu.y = relu_to_centred.x = dense(relu_data.data(), p);
  relu_to_centred.y = centred_to_y.x = dense(centred_data.data(), p);

  launch_map<T>(x_to_relu, device::Relu<T>{}, stream);
  launch_mean<T>(relu_to_centred, device::Mean<T>{mean}, device, stream);
  launch_mean<T>(relu_to_centred, device::Variance<T>{mean, variance}, device, stream);
  launch_map<T>(relu_to_centred, device::Centre<T>{mean}, stream);
  const bool floats = stored_as(p, DType::kFloat32), columns_in_slots = in_slots(p.weight) && in_slots(p.bias);
  const auto scale = [&](auto op) {
    op.variance = variance, op.eps = static_cast<C>(p.eps);
    op.parameters = {column_of(p.weight), column_of(p.bias)};
    launch_map<T>(centred_to_y, op, stream, columns_in_slots && (floats || stored_as(p, kType)));
  };
  floats ? scale(device::Scale<T, float>{}) : scale(device::Scale<T, T>{});
}

}  // namespace kfusion::cuda
