// Sweeps over rows whose elements are an expression of several arrays, as one loop (RowLoop) for each form.
#pragma once
#include "cpu/fused/expression.hpp"
#include "cpu/fused/row_loops.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

// ---- forms -------------------------------------------------------------------------------------------------------

/// What a form's leaves stand for.
struct Match {
  const Expression& of;
  DType elements;  ///< of arrays in memory
  std::int32_t arrays[kFormArrays], numbers[kFormNumbers];
  int place_bytes = 8;

  explicit Match(const Expression& e, DType dtype) : of(e), elements(dtype) {
    for (auto& a : arrays) a = -1;
    for (auto& n : numbers) n = -1;
  }
  const Term& term(int t) const { return of.terms[static_cast<std::size_t>(t)]; }
  static bool binds(std::int32_t& to, std::int32_t operand) {
    if (to < 0) to = operand;
    return to == operand;
  }
};

/// Array `k`, a row for each row, of the elements' type.
template <int k>
struct Row {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    return term.kind == Term::Kind::kArray && term.dtype == m.elements && m.binds(m.arrays[k], term.operand);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    return at.template row<k>();
  }
};

/// Array `k` of the compute type: weights, values that an earlier sweep kept.
template <int k>
struct Own {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    return term.kind == Term::Kind::kArray && term.dtype == m.of.held && m.binds(m.arrays[k], term.operand);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    return at.template own<k>();
  }
};

template <int k>
struct Number {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    return term.kind == Term::Kind::kNumber && m.binds(m.numbers[k], term.operand);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    return at.numbers[k];
  }
};

/// Number 1 at the position that number 0 is, number 2 elsewhere.
template <int kPlace, int kThere, int kElsewhere>
struct Placed {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    if (term.kind != Term::Kind::kMap || term.op != Op::where) return false;
    const Term& place = m.term(term.arguments[0]);
    m.place_bytes = place.dtype == DType::kInt32 ? 4 : 8;
    return place.kind == Term::Kind::kPlace && m.binds(m.numbers[kPlace], place.operand) &&
           Number<kThere>::is(m, term.arguments[1]) && Number<kElsewhere>::is(m, term.arguments[2]);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    return select(at.is_place(), at.numbers[kThere], at.numbers[kElsewhere]);
  }
};

/// By number 0.
template <class X>
struct Quotient {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    return term.kind == Term::Kind::kMap && term.op == Op::divide && X::is(m, term.arguments[0]) &&
           Number<0>::is(m, term.arguments[1]);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    VecOf<E> x[1] = {X::template of<E>(at)};
    at.leaves.by.template take<1>(x);
    return x[0];
  }
};

/// Number `k` where X is at most this number, else Y.
template <class X, int k, class Y>
struct Above {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    if (term.kind != Term::Kind::kMap || term.op != Op::where) return false;
    const Term& below = m.term(term.arguments[0]);
    return below.kind == Term::Kind::kMap && below.op == Op::less_equal && X::is(m, below.arguments[0]) &&
           Number<k>::is(m, below.arguments[1]) && Number<k>::is(m, term.arguments[1]) && Y::is(m, term.arguments[2]);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    const VecOf<E> limit = at.numbers[k];
    return select(X::template of<E>(at) <= limit, limit, Y::template of<E>(at));
  }
};

template <Op op, class X>
struct Mapped {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    return term.kind == Term::Kind::kMap && term.op == op && X::is(m, term.arguments[0]);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    const VecOf<E> x = X::template of<E>(at);
    return apply<op, typename E::Compute>(x, x, x);
  }
};

template <Op op, class X, class Y>
struct Combined {
  static bool is(Match& m, int t) {
    const Term& term = m.term(t);
    if (term.kind != Term::Kind::kMap || term.op != op) return false;
    const Match before = m;
    if (both(m, term.arguments[0], term.arguments[1])) return true;
    restore(m, before);
    return info(op).has(kCommutes) && both(m, term.arguments[1], term.arguments[0]);
  }
  template <class E, class At>
  static KF_INLINE VecOf<E> of(const At& at) {
    const VecOf<E> x = X::template of<E>(at), y = Y::template of<E>(at);
    return apply<op, typename E::Compute>(x, y, y);
  }

 private:
  static bool both(Match& m, int x, int y) { return X::is(m, x) && Y::is(m, y); }
  static void restore(Match& m, const Match& before) {
    for (int k = 0; k < kFormArrays; ++k) m.arrays[k] = before.arrays[k];
    for (int k = 0; k < kFormNumbers; ++k) m.numbers[k] = before.numbers[k];
  }
};

// ---- loops -------------------------------------------------------------------------------------------------------

/// A divisor as the loops of row_loops.hpp have it.
template <class V>
struct DividedBy {
  template <int kCount>
  KF_INLINE void take(V* x) const {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) x[j] = apply<Op::divide, typename V::Value>(x[j], number, number);
  }
  KF_INLINE void set(V x) { number = x; }
  V number{1};
};
#if defined(__AVX512F__)
template <>
struct DividedBy<FloatVec> {
  template <int kCount>
  KF_INLINE void take(FloatVec* x) const {
    by.divide_all<kCount>(x);
  }
  KF_INLINE void set(FloatVec x) { by = Divisor(x); }
  Divisor by{FloatVec(1)};
};
#endif

/// An operand that a loop has: what stands for those that it has not, which its form does not read.
inline std::int32_t some_of(const RowLoop& l) {
  for (const std::int32_t operand : l.arrays)
    if (operand >= 0) return operand;
  for (const std::int32_t operand : l.numbers)
    if (operand >= 0) return operand;
  return 0;
}

/// Where the leaves of a form are, row by row. A form has no array or number that the loop has not.
template <class E>
class Leaves {
 public:
  using V = VecOf<E>;
  KF_INLINE Leaves(const RowLoop& l, const TileContext* c, const RowBlock& b) {
    const std::int32_t some = some_of(l);
#pragma GCC unroll 4
    for (int k = 0; k < kFormArrays; ++k) {
      const std::int32_t operand = l.arrays[k] < 0 ? some : l.arrays[k];
      array_steps_[k] = c->row_steps[operand];
      arrays[k] = c->at[operand] + (b.first - 1) * array_steps_[k];
    }
#pragma GCC unroll 4
    for (int k = 0; k < kFormNumbers; ++k) {
      const std::int32_t operand = l.numbers[k] < 0 ? some : l.numbers[k];
      number_steps_[k] = c->row_steps[operand];
      numbers_[k] = c->at[operand] + (b.first - 1) * number_steps_[k];
      has_[k] = l.numbers[k] >= 0;
    }
    places_ = l.places, divides_ = l.divides, of_four_bytes_ = l.place_bytes == 4;
  }
  KF_INLINE void begin_row() {
#pragma GCC unroll 4
    for (int k = 0; k < kFormArrays; ++k) arrays[k] += array_steps_[k];
#pragma GCC unroll 4
    for (int k = 0; k < kFormNumbers; ++k) {
      numbers_[k] += number_steps_[k];
      if (has_[k] && !(k == 0 && places_)) numbers[k] = number<typename V::Value>(numbers_[k]);
    }
    if (divides_) by.set(numbers[0]);
    if (places_) {
      const std::int64_t p = of_four_bytes_ ? *reinterpret_cast<const std::int32_t*>(numbers_[0])
                                            : *reinterpret_cast<const std::int64_t*>(numbers_[0]);
      place = p < 0 || p > kFar ? -1 : static_cast<std::int32_t>(p);
    }
  }

  const std::byte* arrays[kFormArrays];
  V numbers[kFormNumbers] = {};
  std::int32_t place = -1;
  DividedBy<V> by;

 private:
  static constexpr std::int64_t kFar = 1 << 30;
  const std::byte* numbers_[kFormNumbers];
  std::int64_t array_steps_[kFormArrays], number_steps_[kFormNumbers];
  bool has_[kFormNumbers], places_ = false, divides_ = false, of_four_bytes_ = false;
};

/// The leaves' values for the register that begins at element i; `kPart`: for the first `count` lanes of it.
template <class E, bool kPart>
struct LeavesAt {
  using V = VecOf<E>;
  const Leaves<E>& leaves;
  std::int64_t i;
  int count;
  const V (&numbers)[kFormNumbers];

  KF_INLINE LeavesAt(const Leaves<E>& l, std::int64_t at, int n) : leaves(l), i(at), count(n), numbers(l.numbers) {}
  template <int k>
  KF_INLINE V row() const {
    const std::byte* const p = leaves.arrays[k] + i * kItem<E>;
    if constexpr (kPart) return load_elements<E>(p, count);
    return load_elements<E>(p);
  }
  template <int k>
  KF_INLINE V own() const {
    constexpr int kBytes = static_cast<int>(sizeof(typename V::Lane));
    const std::byte* const p = leaves.arrays[k] + i * kBytes;
    if constexpr (kPart) return V(load_first<typename V::Native>(p, count * kBytes));
    return read<typename V::Value>(p);
  }
  KF_INLINE auto is_place() const {
    using Index = Vec<typename IntegerOf<sizeof(typename V::Lane)>::Type>;
    typename Index::Native lane = {};
    for (int l = 0; l < Index::kCount; ++l) lane[l] = l;
    return Index(lane) == Index(static_cast<std::int64_t>(leaves.place) - i);
  }
};

/// What is read of the next rows meanwhile.
class NextRows {
 public:
  KF_INLINE NextRows(const RowLoop& l, const TileContext* c, const RowBlock& b) : count_(l.fetched) {
    for (int k = 0; k < count_; ++k) {
      const TileFetch& f = l.fetches[k];
      step_[k] = c->row_steps[f.operand], stride_[k] = f.stride, far_ = far_ || f.far;
      next_[k] = begin_of(f, c, b.begin) + static_cast<std::uintptr_t>((b.first - 1) * step_[k]);
    }
  }
  KF_INLINE void begin_row() {
    for (int k = 0; k < count_; ++k) next_[k] += static_cast<std::uintptr_t>(step_[k]);
  }
  /// For registers `j` of the row and on.
  template <int kCount>
  KF_INLINE void fetch(std::int64_t j) const {
    far_ ? fetch_from<kCount, true>(j) : fetch_from<kCount, false>(j);
  }
  bool any() const { return count_ > 0; }

 private:
  template <int kCount, bool kFar>
  KF_INLINE void fetch_from(std::int64_t j) const {
#pragma GCC unroll 3
    for (int k = 0; k < kFormFetches; ++k) {
      if (k == count_) return;
      const auto stride = static_cast<std::uintptr_t>(stride_[k]);
      std::uintptr_t at = next_[k] + static_cast<std::uintptr_t>(j) * stride;
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r, at += stride) kFar ? prefetch_far(at) : prefetch(at);
    }
  }

  int count_;
  bool far_ = false;
  std::int64_t step_[kFormFetches] = {}, stride_[kFormFetches] = {};
  std::uintptr_t next_[kFormFetches] = {};
};

template <class E, class Form, class Accumulators>
class SummedForm {
 public:
  using V = VecOf<E>;
  static constexpr int kCount = V::kCount;

  KF_INLINE SummedForm(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : leaves_(l, c, b), next_(l, c, b), to_(c, l.to, b, 0) {}

  /// False where the accumulators cannot hold it.
  KF_INLINE bool row(std::int64_t begin, std::int64_t end) {
    leaves_.begin_row(), next_.begin_row();
    Accumulators sums;
    std::int64_t i = begin;
    for (; i + kRegisters * kCount <= end; i += kRegisters * kCount) {
      if (next_.any()) next_.template fetch<kRegisters>((i - begin) / kCount);
      V x[kRegisters];
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) x[j] = Form::template of<E>(LeavesAt<E, false>(leaves_, i + j * kCount, 0));
      sums.template take<kRegisters>(x);
    }
    for (; i + kCount <= end; i += kCount) {
      const V x = Form::template of<E>(LeavesAt<E, false>(leaves_, i, 0));
      sums.template take<1>(&x);
    }
    if (i < end) {
      const int rest = static_cast<int>(end - i);
      const V x = Accumulators::only(Form::template of<E>(LeavesAt<E, true>(leaves_, i, rest)), rest);
      sums.template take<1>(&x);
    }
    const bool held = sums.finish();
    sums.put(to_.next());
    return held;
  }

 private:
  Leaves<E> leaves_;
  NextRows next_;
  RowsOf to_;
};

/// Floats are added as floats over a few tiles: what that loses is about what the products have lost.
template <class E, class Form>
void sum_form(const RowLoop& l, const TileContext* c, const RowBlock& b) {
  using T = typename E::Compute;
  const std::int64_t begin = b.begin, end = b.end;
  SummedForm<E, Form, typename PositiveSum<T>::Type> rows(l, c, b);
  for (std::int64_t r = b.first; r < b.last; ++r)
    if (!rows.row(begin, end)) [[unlikely]]
      SummedForm<E, Form, RowSum<T>>(l, c, {r, r + 1, begin, end}).row(begin, end);
}

constexpr int kSome = 4;  // registers that are stored at a time

/// To, the elements stored, of the leaves' compute type.
template <class E, class To, class Form>
class StoredForm {
 public:
  using V = VecOf<To>;
  static constexpr int kCount = V::kCount;

  KF_INLINE StoredForm(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : leaves_(l, c, b), next_(l, c, b), to_(c, l.to, {b.first, b.last, 0, 0}, 0) {}

  KF_INLINE void row(std::int64_t begin, std::int64_t end, bool adds, bool streams) {
    leaves_.begin_row(), next_.begin_row();
    std::byte* const y = to_.next();
    streams = streams && reinterpret_cast<std::uintptr_t>(y + begin * kItem<To>) % kLineBytes == 0;
    std::int64_t i = begin;
    for (; i + kSome * kCount <= end; i += kSome * kCount) {
      if (next_.any()) next_.template fetch<kSome>((i - begin) / kCount);
      V x[kSome];
#pragma GCC unroll 4
      for (int j = 0; j < kSome; ++j) x[j] = value(i + j * kCount);
      put(y + i * kItem<To>, x, adds, streams);
    }
    for (; i + kCount <= end; i += kCount) {
      const V x = value(i);
      std::byte* const at = y + i * kItem<To>;
      store_elements<To>(at, adds ? load_elements<To>(at) + x : x);
    }
    if (i == end) return;
    const int rest = static_cast<int>(end - i);
    const V x(Form::template of<E>(LeavesAt<E, true>(leaves_, i, rest)).v);
    std::byte* const at = y + i * kItem<To>;
    store_elements<To>(at, adds ? load_elements<To>(at, rest) + x : x, rest);
  }

 private:
  static constexpr int kBytes = kCount * kItem<To>;

  KF_INLINE V value(std::int64_t i) const { return V(Form::template of<E>(LeavesAt<E, false>(leaves_, i, 0)).v); }
  static KF_INLINE void put(std::byte* y, V* x, bool adds, bool streams) {
    if (adds) {
#pragma GCC unroll 4
      for (int j = 0; j < kSome; ++j) x[j] = load_elements<To>(y + j * kBytes) + x[j];
    }
    if (streams) {
#pragma GCC unroll 4
      for (int j = 0; j < kSome; ++j) stream_elements<To>(y + j * kBytes, x[j]);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < kSome; ++j) store_elements<To>(y + j * kBytes, x[j]);
    }
  }

  Leaves<E> leaves_;
  NextRows next_;
  RowsOf to_;
};

template <class E, class To, class Form>
void store_form(const RowLoop& l, const TileContext* c, const RowBlock& b) {
  StoredForm<E, To, Form> rows(l, c, b);
  const bool adds = l.adds, streams = c->stream && !adds;
  const std::int64_t begin = b.begin, end = b.end;
  for (std::int64_t r = b.first; r < b.last; ++r) rows.row(begin, end, adds, streams);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
