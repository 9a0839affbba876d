// The bodies of the steps that move a tile from and to memory.
#pragma once
#include "cpu/fused/tables.hpp"
#include "cpu/fused/tile.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// Elements of E in a register, all or half of its lanes, and their bytes in memory.
template <class E, bool wide>
constexpr int kPart = wide && sizeof(typename E::Compute) < 8 ? kVectorBytes / 8 : kLanes<E>;
template <class E, bool wide>
constexpr int kPartBytes = kPart<E, wide> * kItem<E>;

template <class E, bool wide>
struct Load {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    constexpr int kBytes = kPartBytes<E, wide>;
    fetch<kWhole, sizeof...(X)>(s, c, i);
    const std::byte* p = operand(s, c, i);
    const auto part = [&p]() KF_LAMBDA {
      const std::byte* const from = p;
      p += kBytes;
      if constexpr (kPart<E, wide> == kLanes<E>) return (F32s)load_elements<E>(from).v;
      return (F32s)load_half_elements<E>(from).v;
    };
    ((x = part()), ...);
  }
};

/// Elements of a table at the indices that the tile holds.
template <class E, bool wide>
struct Take {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    constexpr std::int64_t kElements = kPart<E, wide> * static_cast<int>(sizeof...(X));
    std::byte* index = c->at[s->operand];
    ((store(index, x), index += kVectorBytes), ...);
    const std::int64_t end = c->partial ? i + c->valid : c->end;
    take_elements(c->tables[s->table], i, end - i < kElements ? end - i : kElements, c->at[s->operand], kPart<E, wide>,
                  c->at[s->second]);
    const std::byte* p = c->at[s->second];
    const auto part = [&p]() KF_LAMBDA {
      const std::byte* const from = p;
      p += kPartBytes<E, wide>;
      if constexpr (kPart<E, wide> == kLanes<E>) return (F32s)load_elements<E>(from).v;
      return (F32s)load_half_elements<E>(from).v;
    };
    ((x = part()), ...);
  }
};

template <class E, bool wide>
struct Store {
  using Value = VecOf<E>;
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    constexpr int kBytes = kPartBytes<E, wide>;
    std::byte* p = operand(s, c, i);
    const bool past_caches = c->stream && s->scale != 0;  // never a stage, which is read right after
    const bool stream = past_caches && reinterpret_cast<std::uintptr_t>(p) % kLineBytes == 0;
    const auto part = [&p, stream](const F32s& v) KF_LAMBDA {
      const Value value((typename Value::Native)v);
      if constexpr (kPart<E, wide> != kLanes<E>) {
        store_half_elements<E>(p, value);
      } else if (stream) {
        stream_elements<E>(p, value);
      } else {
        store_elements<E>(p, value);
      }
      p += kBytes;
    };
    (part(x), ...);
  }
};

/// To what lies there.
template <class E, bool wide>
struct Add {
  using Value = VecOf<E>;
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    std::byte* p = operand(s, c, i);
    const auto part = [&p](const F32s& v) KF_LAMBDA {
      const Value value((typename Value::Native)v);
      if constexpr (kPart<E, wide> != kLanes<E>)
        store_half_elements<E>(p, load_half_elements<E>(p) + value);
      else
        store_elements<E>(p, load_elements<E>(p) + value);
      p += kPartBytes<E, wide>;
    };
    (part(x), ...);
  }
};

struct Reload {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    fetch<kWhole, sizeof...(X)>(s, c, i);
    const std::byte* p = operand(s, c, i);
    ((x = load<F32s>(p), p += s->stride), ...);
  }
};

struct Spill {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    std::byte* p = operand(s, c, i);
    ((store(p, x), p += kVectorBytes), ...);
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
