// Random words of many positions at once.
#pragma once
#include <utility>

#include "cpu/fused/tile.hpp"
#include "cpu/vector/math.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// Words of positions one after the other: a block of four serves four of them.
class RandomWords {
  static constexpr int kLanes = Int64Vec::kCount;
  using Lanes = std::make_index_sequence<kLanes>;

 public:
  RandomWords(Int64Vec stream, Int64Vec key) : stream_(stream), key_(key) {}

  /// Whether the registers have the positions of whole blocks, in order.
  static KF_INLINE bool are_whole_blocks(const F32s* tile, int count) {
    const Int64Vec first((std::int64_t)Int64Vec((I64s)tile[0]).v[0]);
    Int64Vec expected = first + numbers(Lanes()), wrong = first & Int64Vec(3);
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) {
      wrong = wrong | (Int64Vec((I64s)tile[j]) ^ expected);
      expected = expected + Int64Vec(kLanes);
    }
    return !any(wrong != Int64Vec(0));
  }

  /// Of four registers of positions of whole blocks.
  KF_INLINE void put(F32s* tile) const {
    const Int64Vec first((std::int64_t)Int64Vec((I64s)tile[0]).v[0]);
    const RandomBlocks blocks((first >> 2) + numbers(Lanes()), stream_, key_);
    const Int64Vec low = Int64Vec(0xffffffff);
    const I64s w0 = (blocks.words[0] & low).v, w1 = (blocks.words[1] & low).v;
    const I64s w2 = (blocks.words[2] & low).v, w3 = (blocks.words[3] & low).v;
    const I64s a = zipped<0, 1>(w0, w1, Lanes()), b = zipped<0, 1>(w2, w3, Lanes());
    const I64s c = zipped<1, 1>(w0, w1, Lanes()), d = zipped<1, 1>(w2, w3, Lanes());
    tile[0] = (F32s)zipped<0, 2>(a, b, Lanes());
    tile[1] = (F32s)zipped<1, 2>(a, b, Lanes());
    tile[2] = (F32s)zipped<0, 2>(c, d, Lanes());
    tile[3] = (F32s)zipped<1, 2>(c, d, Lanes());
  }

 private:
  template <std::size_t... lane>
  static KF_INLINE Int64Vec numbers(std::index_sequence<lane...>) {
    return Int64Vec(I64s{static_cast<std::int64_t>(lane)...});
  }
  /// The lower (0) or upper (1) half of both registers' lanes in turn, so many at a time.
  template <int kHalf, int kTogether, std::size_t... lane>
  static KF_INLINE I64s zipped(I64s x, I64s y, std::index_sequence<lane...>) {
    return __builtin_shufflevector(x, y, place_of(kHalf * kLanes + static_cast<int>(lane), kTogether)...);
  }
  static constexpr int place_of(int i, int together) {
    const int group = i / together;
    return group % 2 * kLanes + group / 2 * together + i % together;
  }

  Int64Vec stream_, key_;
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
