// From the steps of a sweep to the loop that takes them (RowLoop). The grammar, in brackets what may be missing:
//
//     load [relu] [- number]  then  [square | exp] sum | mean | max [keep]
//     load [absolute] max,  load min
//                             or    [* number] [* array [+ array]] store,  - number store,  [exp] / number store
//     kept / number store
#include "cpu/fused/row_moments.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr Width kFull = Width::kFull;

/// Reads the steps of a sweep whose elements lie in memory as E, one after the other.
template <class E, DType dtype>
class RowGrammar {
 public:
  RowGrammar(const TileStep* steps, int count) : s_(steps), end_(steps + count) {}

  RowLoop loop() {
    if (loads()) {
      relu_ = takes_map(Op::relu);
      centred_ = take_number(Op::subtract, l_.centre);
      const TileStep* const rest = s_;
      if (!reduces()) s_ = rest, stores();
    } else if (wants(reload_step(kFull)) && s_->stride != 0) {
      l_.x = take().operand;
      if constexpr (!kWide)  // only such values are kept
        if (take_number(Op::divide, l_.factor)) store_as<Float32, Plain, Over, 0>();
    }
    if (s_ + 1 != end_ || !wants(done_step(kFull))) l_.run = nullptr;
    return l_;
  }

 private:
  using T = typename E::Compute;
  static constexpr DType kHeld = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  static constexpr bool kWide = sizeof(T) == 8;

  bool wants(StepFunction f) const { return s_ < end_ && s_->run == f; }
  const TileStep& take() { return *s_++; }

  bool loads() {
    if (!wants(load_step(dtype, kFull, kWide)) || s_->scale != kItem<E>) return false;
    l_.x = take().operand;
    return true;
  }
  bool takes_map(Op op) {
    if (!wants(map_step(op, kHeld, kFull))) return false;
    ++s_;
    return true;
  }
  bool take_number(Op op, std::int32_t& operand) {
    if (!wants(map_step(op, kHeld, kFull)) || s_->stride != 0) return false;
    operand = take().operand;
    return true;
  }
  bool take_array(Op op, std::int32_t& operand) {
    if (!wants(map_step(op, kHeld, kFull)) || s_->stride != kVectorBytes || s_->scale != sizeof(T)) return false;
    operand = take().operand;
    return true;
  }

  bool wants_reduction(Op op, bool positive) const {
    return wants(reduce_step(op, kHeld, kFull, kWide, false, positive));
  }
  bool sums(bool positive) const { return wants_reduction(Op::sum, positive) || wants_reduction(Op::mean, positive); }

  template <template <class> class Before, class F, class Accumulators, bool kKeeps = false>
  bool reduce_by() {
    l_.to = take().operand;
    if constexpr (kKeeps) l_.kept = take().operand;
    l_.run = reduce_rows<E, Before, F, Accumulators, kKeeps>;
    l_.folds = Accumulators::kFolded;
    return true;
  }
  bool reduces() {
    using Sum = typename PositiveSum<T>::Type;
    using Square = Function<Op::square>;
    using Exp = Function<Op::exp>;
    const bool plain = !relu_ && !centred_;
    if (plain && wants_reduction(Op::max, false)) return reduce_by<Plain, Same, RowMax<T>>();
    if (plain && wants_reduction(Op::min, false)) return reduce_by<Plain, Same, RowMin<T>>();
    if (plain && sums(false)) return reduce_by<Plain, Same, RowSum<T>>();
    if (relu_ && !centred_ && sums(true)) return reduce_by<Relu, Same, Sum>();
    if (plain && takes_map(Op::absolute))
      return wants_reduction(Op::max, false) && reduce_by<Plain, Function<Op::absolute>, RowMax<T>>();
    if (takes_map(Op::square)) {
      if (!sums(true)) return false;
      if (plain) return reduce_by<Plain, Square, Sum>();
      if (!centred_) return false;
      return relu_ ? reduce_by<CentredRelu, Square, Sum>() : reduce_by<Centred, Square, Sum>();
    }
    if (relu_ || !centred_ || !takes_map(Op::exp) || !sums(true)) return false;
    const bool keeps = s_ + 1 < end_ && s_[1].run == spill_step(kFull) && s_[1].scale != 0;
    return keeps ? reduce_by<Centred, Exp, Sum, true>() : reduce_by<Centred, Exp, Sum>();
  }

  template <class In, template <class> class Before, template <class> class Scale, int kArrays>
  void store_as() {
    if (!wants(store_step(dtype, kFull, kWide)) || s_->scale != kItem<E>) return;
    l_.to = take().operand;
    l_.run = store_rows<In, E, Before, Scale, kArrays>;
  }
  template <template <class> class Before>
  void normalizes() {
    if (!take_array(Op::multiply, l_.weight)) return store_as<E, Before, Times, 0>();
    take_array(Op::add, l_.bias) ? store_as<E, Before, Times, 2>() : store_as<E, Before, Times, 1>();
  }
  void stores() {
    if (centred_ && !relu_) {
      if (take_number(Op::subtract, l_.factor)) return store_as<E, Centred, Less, 0>();
      if (takes_map(Op::exp)) {
        if (take_number(Op::divide, l_.factor)) store_as<E, CentredExp, Over, 0>();
        return;
      }
    }
    if (!relu_ && !centred_ && take_number(Op::divide, l_.factor)) return store_as<E, Plain, Over, 0>();
    if (!take_number(Op::multiply, l_.factor)) return;
    if (centred_) return relu_ ? normalizes<CentredRelu>() : normalizes<Centred>();
    if (!relu_) normalizes<Plain>();
  }

  const TileStep *s_, *end_;
  RowLoop l_;
  bool relu_ = false, centred_ = false;
};

template <class E, DType dtype>
bool finds(RowLoop& loop, const TileStep* steps, int count) {
  loop = RowGrammar<E, dtype>(steps, count).loop();
  return loop.run != nullptr;
}

/// Of floats in memory as E.
template <class E>
RowMoments::Run moments_of(const RowLoop& mean, const RowLoop& squares) {
  using Sum = PositiveSum<float>::Type;
  using Square = Function<Op::square>;
  if (mean.run == reduce_rows<E, Plain, Same, RowSum<float>, false> &&
      squares.run == reduce_rows<E, Centred, Square, Sum, false>)
    return moments_of_rows<E, Plain>;
  if (mean.run == reduce_rows<E, Relu, Same, Sum, false> &&
      squares.run == reduce_rows<E, CentredRelu, Square, Sum, false>)
    return moments_of_rows<E, Relu>;
  return nullptr;
}

template <class E, template <class> class Before, template <class> class Stored>
RowAhead::Run ahead_of(const RowLoop& store) {
  if (store.run == store_rows<E, E, Stored, Times, 0>) return store_and_take<E, Before, Stored, 0>;
  if (store.run == store_rows<E, E, Stored, Times, 1>) return store_and_take<E, Before, Stored, 1>;
  if (store.run == store_rows<E, E, Stored, Times, 2>) return store_and_take<E, Before, Stored, 2>;
  return nullptr;
}

template <class E>
RowAhead ahead_of(const RowMoments& moments, const RowLoop& store) {
  RowAhead ahead{nullptr, store, moments};
  if (moments.run == moments_of_rows<E, Plain>) ahead.run = ahead_of<E, Plain, Centred>(store);
  if (moments.run == moments_of_rows<E, Relu>) ahead.run = ahead_of<E, Relu, CentredRelu>(store);
  constexpr int kCount = VecOf<E>::kCount;
  ahead.moments.mean.fetch = {.operand = moments.mean.x, .stride = kCount * kItem<E>, .shift = __builtin_ctz(kCount)};
  return ahead;
}

}  // namespace

RowMoments row_moments(const RowLoop& mean, const RowLoop& squares) {
  if (mean.run == nullptr || mean.x != squares.x) return {};
  RowMoments::Run run = moments_of<Float32>(mean, squares);
  if (run == nullptr) run = moments_of<Float16>(mean, squares);
  if (run == nullptr) run = moments_of<BFloat16>(mean, squares);
  RowMoments moments{run, mean, squares};
  if (mean.fetch.stride == 0) moments.mean.fetch = squares.fetch;
  return moments;
}

RowAhead row_ahead(const RowMoments& moments, const RowLoop& store, std::int64_t ahead) {
  RowAhead loops = ahead_of<Float32>(moments, store);
  if (loops.run == nullptr) loops = ahead_of<Float16>(moments, store);
  if (loops.run == nullptr) loops = ahead_of<BFloat16>(moments, store);
  loops.store.fetch = {};  // what is read by then lies in the cache
  loops.moments.mean.fetch.ahead = ahead;
  return loops;
}

RowLoop row_loop(const TileStep* steps, int count, const TileFetch* fetches) {
  RowLoop loop;
  if (!finds<Float32, DType::kFloat32>(loop, steps, count) && !finds<Float16, DType::kFloat16>(loop, steps, count) &&
      !finds<BFloat16, DType::kBFloat16>(loop, steps, count) && !finds<Float64, DType::kFloat64>(loop, steps, count))
    return {};
  for (int k = 0; k < count; ++k)  // of the array that is read; of another where a sweep reads what was kept
    for (int f = steps[k].fetch; f < steps[k].fetch + steps[k].fetches; ++f)
      if (loop.fetch.stride == 0 || fetches[f].operand == loop.x) loop.fetch = fetches[f];
  return loop;
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
