// Access policies: which columns of a row the slots of a lane hold, and how it reaches them in the matrices and in the
// per-column parameters (weight, bias).
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// The part of a row that a group of lanes works on, and this lane's place in the group. Columns inside it are 32-bit.
struct Span {
  i64 begin;  ///< first column
  int limit;  ///< columns of the part that exist
  int lane, lanes;
};

/// A per-column parameter; data == nullptr where absent.
struct Column {
  const char* data;
  i64 stride;     ///< bytes
  bool is_float;  ///< float32, else the matrix's type
  int keep_at;    ///< where a block keeps its columns in shared memory; < 0: they are read from global memory and L1
};

// A policy has, for matrices: load (a lane's slots of a span), store (one of them), prefetch. Elements beyond `limit`
// load as zero and are not stored. For parameters: keep (the threads of a block as the lanes of its columns; makes the
// column point to shared memory), fetch and values (of slot k; apart, so that several can be on their way).

/// Contiguous rows, everything 16-byte aligned, cols a multiple of a slot: slot k of a lane is one vector.
template <class T>
struct VectorAccess {
  static constexpr int kN = kLanes<T>;
  static constexpr bool kWholeSlots = true;
  static constexpr int kLeanSlots = 8;  ///< for which 64 registers a thread are enough
  /// Of a parameter that is stored in `item` bytes, what a block keeps of a column.
  static constexpr int kept_bytes(int item) { return item; }

  static KF_DEVICE int column(const Span& s, int k, int j) { return (k * s.lanes + s.lane) * kN + j; }
  static KF_DEVICE bool valid(const Span& s, int k, int) { return column(s, k, 0) < s.limit; }

  template <int K>
  static KF_DEVICE void load(Slot (&held)[K], const char* row, i64, const Span& s) {
    const char* p = row + (s.begin + s.lane * kN) * static_cast<int>(sizeof(T));
#pragma unroll
    for (int k = 0; k < K; ++k) held[k] = load_slot(p + k * s.lanes * 16, valid(s, k, 0));
  }
  template <Store kHow>
  static KF_DEVICE void store(const Slot& slot, char* row, i64, const Span& s, int k) {
    char* p = row + (s.begin + s.lane * kN) * static_cast<int>(sizeof(T));
    store_slot<kHow>(p + k * s.lanes * 16, slot, valid(s, k, 0));
  }
  /// One lane asks for the whole span.
  static KF_DEVICE void prefetch(const char* row, const Span& s) {
    if (s.lane == 0 && s.limit > 0) {
      prefetch_to_l2(row + s.begin * static_cast<int>(sizeof(T)), s.limit * static_cast<int>(sizeof(T)));
    }
  }

  template <class P>
  static KF_DEVICE void keep(Column& c, char* shared, const Span& s) {
    constexpr int kItem = sizeof(P);
    const char* from = c.data + s.begin * kItem;
    for (int at = s.lane * 16; at < s.limit * kItem; at += s.lanes * 16) copy_to_shared(shared + at, from + at);
    c.data = shared - s.begin * kItem;  // only ever read at s.begin and beyond
  }
  /// As stored.
  template <class P>
  struct Fetched {
    static constexpr int kSlots = kN * sizeof(P) < 16 ? 1 : kN * sizeof(P) / 16;
    Slot slot[kSlots];
  };
  template <class P>
  static KF_DEVICE Fetched<P> fetch(const Column& c, const Span& s, int k) {
    constexpr int kBytes = kN * sizeof(P);
    const bool exists = c.data && valid(s, k, 0);
    const char* p = c.data + (s.begin * static_cast<int>(sizeof(P)) + s.lane * kBytes) + k * s.lanes * kBytes;
    Fetched<P> f{};
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) f.slot[i] = load_parameter_slot(p + 16 * i, exists);
    } else if (exists) {
      f.slot[0].word[0] = reinterpret_cast<const u32*>(p)[0];
      f.slot[0].word[1] = reinterpret_cast<const u32*>(p)[1];
    }
    return f;
  }
  template <class P>
  static KF_DEVICE void values(Compute<T> (&v)[kN], const Fetched<P>& f, const Column&) {
    if constexpr (sizeof(P) == sizeof(T)) {
      unpack<T>(f.slot[0], v);
    } else {
#pragma unroll
      for (int j = 0; j < kN; ++j) v[j] = __uint_as_float(f.slot[j / 4].word[j % 4]);
    }
  }
};

/// Any widths and alignments: element by element, neighbouring lanes on neighbouring columns. kPacked: contiguous rows,
/// so that distances are known; else any strides.
template <class T, bool kPacked>
struct ElementAccess {
  using C = Compute<T>;
  static constexpr int kN = kLanes<T>;
  static constexpr bool kWholeSlots = false;
  static constexpr int kLeanSlots = kPacked && sizeof(T) < 8 ? 4 : 2;
  static constexpr int kept_bytes(int) { return sizeof(C); }

  static KF_DEVICE int column(const Span& s, int k, int j) { return (k * kN + j) * s.lanes + s.lane; }
  static KF_DEVICE bool valid(const Span& s, int k, int j) { return (k * kN + j) * s.lanes < s.limit - s.lane; }
  static KF_DEVICE i64 distance(i64 stride) { return kPacked ? static_cast<i64>(sizeof(T)) : stride; }

  template <int K>
  static KF_DEVICE void load(Slot (&held)[K], const char* row, i64 stride, const Span& s) {
    const char* p = row + (s.begin + s.lane) * distance(stride);
    const i64 step = s.lanes * distance(stride);
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int j = 0; j < kN; ++j, p += step) load_element<T>(held[k], j, p, valid(s, k, j));
    }
  }
  template <Store>
  static KF_DEVICE void store(const Slot& slot, char* row, i64 stride, const Span& s, int k) {
    char* p = row + (s.begin + s.lane + k * kN * s.lanes) * distance(stride);
    const i64 step = s.lanes * distance(stride);
#pragma unroll
    for (int j = 0; j < kN; ++j, p += step) {
      if (valid(s, k, j)) store_element<T>(slot, j, p);
    }
  }
  static KF_DEVICE void prefetch(const char*, const Span&) {}

  static KF_DEVICE C value(const Column& c, const char* p) {
    return c.is_float ? C(load_value<float>(p)) : C(load_value<T>(p));
  }
  /// Kept in the type of the computation.
  template <class>
  static KF_DEVICE void keep(Column& c, char* shared, const Span& s) {
#pragma unroll 4
    for (int i = s.lane; i < s.limit; i += s.lanes) {
      reinterpret_cast<C*>(shared)[i] = value(c, c.data + (s.begin + i) * c.stride);
    }
    c.data = shared - s.begin * static_cast<int>(sizeof(C));
    c.stride = sizeof(C);
    c.is_float = sizeof(C) == 4;
  }
  /// Nothing is fetched ahead: a slot's elements are many loads already.
  template <class>
  struct Fetched {
    Span s;
    int k;
  };
  template <class P>
  static KF_DEVICE Fetched<P> fetch(const Column&, const Span& s, int k) {
    return {s, k};
  }
  template <class P>
  static KF_DEVICE void values(C (&v)[kN], const Fetched<P>& f, const Column& c) {
    i64 stride = c.stride;
    forget(stride);
    const char* p = c.data + (f.s.begin + f.s.lane + f.k * kN * f.s.lanes) * stride;
    const auto read = [&](auto item, i64 distance) {
      using Item = decltype(item);
#pragma unroll
      for (int j = 0; j < kN; ++j) v[j] = valid(f.s, f.k, j) ? load_value<Item>(p + j * distance) : C(0);
    };
    if (c.stride == sizeof(C) && c.is_float == (sizeof(C) == 4)) {
      read(C{}, f.s.lanes * static_cast<int>(sizeof(C)));
    } else if (c.is_float) {
      read(float{}, f.s.lanes * stride);
    } else {
      read(T{}, f.s.lanes * stride);
    }
  }
};

template <class T>
using PackedAccess = ElementAccess<T, true>;
template <class T>
using StridedAccess = ElementAccess<T, false>;

}  // namespace kfusion::device
