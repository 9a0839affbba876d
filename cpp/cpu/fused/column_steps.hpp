// The bodies of steps that take several rows of a tile of columns. A body is made for a tile: it goes on by rows, and
// what it accumulates stays in registers.
#pragma once
#include "cpu/fused/joined_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// A tile's part of an operand, row by row, in registers of kBytes bytes each. What comes after the rows of this turn
/// is fetched to the second-level cache: rows that lie a power of two apart share few lines of the first.
template <int kBytes>
class RowOfTile {
 public:
  KF_INLINE RowOfTile(KF_STEP)
      : from_(operand(s, c, i)),
        to_next_(c->row_steps[s->operand]),
        ahead_(s->fetches > 0 ? to_next_ * kRowsAtOnce : 0) {}
  KF_INLINE const std::byte* next() {
    const std::byte* const row = from_;
    if (ahead_ != 0)
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters * kBytes; j += kLineBytes)
        prefetch_far(reinterpret_cast<std::uintptr_t>(row) + static_cast<std::uintptr_t>(ahead_ + j));
    from_ += to_next_;
    return row;
  }

 private:
  const std::byte* from_;
  std::int64_t to_next_, ahead_;
};

/// In the elements' compute type: of a half type, as floats.
template <class E, DType dtype>
struct LoadRow : Stateless {
  static constexpr int kElements = kLanes<E>;  ///< of a register
  static bool is(const TileStep& s) { return s.run == load_step(dtype, kFull, kElements == DoubleVec::kCount); }
  KF_INLINE LoadRow(KF_STEP) : row(s, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    const std::byte* from = row.next();
    ((x = (F32s)load_elements<E>(from).v, from += kBytes), ...);
  }
  static constexpr int kBytes = kElements * kItem<E>;
  RowOfTile<kBytes> row;
};

/// With another array's row, or with a value of each column.
template <Op op>
struct WithRow : Stateless {
  static bool is(const TileStep& s) { return ByElement<op>::is(s); }
  KF_INLINE WithRow(KF_STEP) : row(s, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    const std::byte* from = row.next();
    ((x = (F32s)apply<op, float>(FloatVec(x), read<float>(from), FloatVec(0)).v, from += kVectorBytes), ...);
  }
  RowOfTile<kVectorBytes> row;
};

/// Accumulators of a tile, `kEach` registers for one of its own; they begin as what changes nothing.
template <class A, int kEach>
class TileOfAccumulators {
 public:
  KF_INLINE TileOfAccumulators(KF_STEP, double identity) : to_(operand(s, c, i)) {
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j)
      values[j] = c->first ? A(identity) : read<typename A::Value>(to_ + j * kVectorBytes);
  }
  KF_INLINE void finish() const {
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j) store(to_ + j * kVectorBytes, values[j].v);
  }

 private:
  static constexpr int kCount = kEach * kRegisters;
  std::byte* to_;

 protected:
  A values[kCount];
};

template <Op op>
struct SumOfRows : TileOfAccumulators<DoubleVec, 2> {
  static bool is(const TileStep& s) { return s.run == reduce_step(op, DType::kFloat32, kFull, false, true, false); }
  KF_INLINE SumOfRows(KF_STEP) : TileOfAccumulators(s, c, i, -0.0) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    int j = 0;
    ((values[j] = values[j] + DoubleVec(doubles_of(half_lanes<0>(FloatVec(x)))),
      values[j + 1] = values[j + 1] + DoubleVec(doubles_of(half_lanes<1>(FloatVec(x)))), j += 2),
     ...);
  }
};

/// Of what has just been loaded: converted on the way from memory.
template <Op op>
struct SumOfLoadedRows : SumOfRows<op> {
  KF_INLINE SumOfLoadedRows(KF_STEP)
      : SumOfRows<op>(s, c, i), from(operand(s - 1, c, i)), to_next(c->row_steps[(s - 1)->operand]) {}
  template <class... X>
  KF_INLINE void take(X&...) {
    using Half = VectorOf<float, kVectorBytes / 2>::Type;
#pragma GCC unroll 16
    for (int j = 0; j < 2 * kRegisters; ++j)
      this->values[j] = this->values[j] + DoubleVec(doubles_of(load<Half>(from + j * static_cast<int>(sizeof(Half)))));
    from += to_next;
  }
  const std::byte* from;
  std::int64_t to_next;
};

/// Where accumulators have the elements' type: largest and smallest, and sums of doubles.
template <Op op, class T>
struct ReduceRows : TileOfAccumulators<Vec<T>, 1> {
  static constexpr double kIdentity = op == Op::max ? -__builtin_inf() : op == Op::min ? __builtin_inf() : -0.0;
  static bool is(const TileStep& s) {
    return s.run == reduce_step(op, DTypeOf<T>::kValue, kFull, sizeof(T) == 8, true, false);
  }
  KF_INLINE ReduceRows(KF_STEP) : TileOfAccumulators<Vec<T>, 1>(s, c, i, kIdentity) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    int j = 0;
    ((this->values[j] = Reduction<op>::template combine<Vec<T>>(this->values[j], as<T>(x)), ++j), ...);
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
