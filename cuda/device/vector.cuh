// Neighbouring elements as a thread loads, holds and stores them, and where they lie.
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// kN neighbouring elements of T as stored, at most 16 bytes.
template <class T, int kN>
struct Vector {
  static constexpr int kBytes = kN * static_cast<int>(sizeof(T));
  static constexpr int kWords = (kBytes + 3) / 4;
  u32 word[kWords];
};

/// Element j; j must be a constant after unrolling.
template <class T, int kN>
KF_DEVICE Compute<T> get(const Vector<T, kN>& v, int j) {
  if constexpr (sizeof(T) == 1) {
    return (v.word[j / 4] >> (8 * (j % 4)) & 0xffu) != 0;
  } else if constexpr (sizeof(T) == 2) {
    float lo, hi;
    unpack_pair<T>(v.word[j / 2], lo, hi);
    return j % 2 ? hi : lo;
  } else {
    T value;
    memcpy(&value, &v.word[j * sizeof(T) / 4], sizeof(T));
    return value;
  }
}

template <class T, int kN>
KF_DEVICE Vector<T, kN> pack_vector(const Compute<T> (&value)[kN]) {
  Vector<T, kN> v;
  if constexpr (sizeof(T) == 1) {
#pragma unroll
    for (int i = 0; i < Vector<T, kN>::kWords; ++i) v.word[i] = 0;
#pragma unroll
    for (int j = 0; j < kN; ++j) v.word[j / 4] |= static_cast<u32>(value[j] != 0) << (8 * (j % 4));
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < Vector<T, kN>::kWords; ++i)
      v.word[i] = pack_pair<T>(value[2 * i], 2 * i + 1 < kN ? value[2 * i + 1] : 0.0f);
  } else {
    memcpy(v.word, value, sizeof v.word);
  }
  return v;
}

/// Makes the compiler forget what it derived from `v`: a later sweep unpacks it again, which takes fewer registers than
/// keeping the unpacked values of half types.
template <class T, int kN>
KF_DEVICE void forget([[maybe_unused]] Vector<T, kN>& v) {
  if constexpr (sizeof(T) < 4 && kN > 1) {
#pragma unroll
    for (int i = 0; i < Vector<T, kN>::kWords; ++i) asm volatile("" : "+r"(v.word[i]));
  }
}

// ---- memory ---------------------------------------------------------------------------------------------------------
// Loads are volatile and not `.nc`: in place, the same kernel writes what it has read. They are predicated inside the
// asm, so that the loads of a thread follow each other without branches.

/// How long what is loaded is wanted: what is read once passes L1 by.
enum class Use { kOnce, kAgain };

/// Element j of `v`, which was zero there.
template <class T, int kN>
KF_DEVICE void load_element(Vector<T, kN>& v, int j, const T* p) {
  if constexpr (sizeof(T) == 1) {
    v.word[j / 4] |= static_cast<u32>(*reinterpret_cast<const u8*>(p)) << (8 * (j % 4));
  } else if constexpr (sizeof(T) == 2) {
    v.word[j / 2] |= static_cast<u32>(*reinterpret_cast<const u16*>(p)) << (16 * (j % 2));
  } else if constexpr (sizeof(T) == 4) {  // not memcpy, which knows no alignment and goes byte by byte
    v.word[j] = *reinterpret_cast<const u32*>(p);
  } else {
    const u64 bits = *reinterpret_cast<const u64*>(p);
    v.word[2 * j] = static_cast<u32>(bits);
    v.word[2 * j + 1] = static_cast<u32>(bits >> 32);
  }
}
template <class T, int kN>
KF_DEVICE void store_element(T* p, const Vector<T, kN>& v, int j) {
  if constexpr (sizeof(T) == 1) {
    *reinterpret_cast<u8*>(p) = static_cast<u8>(v.word[j / 4] >> (8 * (j % 4)));
  } else if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<u16*>(p) = static_cast<u16>(v.word[j / 2] >> (16 * (j % 2)));
  } else if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<u32*>(p) = v.word[j];
  } else {
    *reinterpret_cast<u64*>(p) = v.word[2 * j] | static_cast<u64>(v.word[2 * j + 1]) << 32;
  }
}

/// What the hardware moves at once; less, and all on a host, goes element by element.
#ifdef __CUDA_ARCH__
inline constexpr int kLeastWordBytes = 4;
#else
inline constexpr int kLeastWordBytes = 32;
#endif

#define KF_LOAD_WORDS(cache)                                                                                    \
  if constexpr (Vector<T, kN>::kBytes == 16) {                                                                  \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global" cache ".v4.u32 {%0, %1, %2, %3}, [%4]; }" \
                 : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])                           \
                 : "l"(p), "r"(static_cast<int>(valid)));                                                       \
  } else if constexpr (Vector<T, kN>::kBytes == 8) {                                                            \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global" cache ".v2.u32 {%0, %1}, [%2]; }"         \
                 : "+r"(v.word[0]), "+r"(v.word[1])                                                             \
                 : "l"(p), "r"(static_cast<int>(valid)));                                                       \
  } else {                                                                                                      \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global" cache ".u32 %0, [%1]; }"                  \
                 : "+r"(v.word[0])                                                                              \
                 : "l"(p), "r"(static_cast<int>(valid)));                                                       \
  }

/// A whole vector of neighbours, aligned to its size; zeros where not `valid`.
template <Use kUse, class T, int kN>
KF_DEVICE Vector<T, kN> load_whole(const T* p, bool valid) {
  static_assert(Vector<T, kN>::kBytes <= 16);
  Vector<T, kN> v{};
  if constexpr (Vector<T, kN>::kBytes < kLeastWordBytes) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (valid) load_element(v, j, p + j);
    }
  } else if constexpr (kUse == Use::kOnce) {
    KF_LOAD_WORDS(".L1::no_allocate")
  } else {
    KF_LOAD_WORDS("")
  }
  return v;
}
#undef KF_LOAD_WORDS

template <class T, int kN>
KF_DEVICE void store_whole(T* p, const Vector<T, kN>& v) {
  static_assert(Vector<T, kN>::kBytes <= 16);
  if constexpr (Vector<T, kN>::kBytes < kLeastWordBytes) {
#pragma unroll
    for (int j = 0; j < kN; ++j) store_element(p + j, v, j);
  } else if constexpr (Vector<T, kN>::kBytes == 16) {
    asm volatile("st.global.v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3]), "l"(p)
                 : "memory");
  } else if constexpr (Vector<T, kN>::kBytes == 8) {
    asm volatile("st.global.v2.u32 [%2], {%0, %1};" ::"r"(v.word[0]), "r"(v.word[1]), "l"(p) : "memory");
  } else {
    asm volatile("st.global.u32 [%1], %0;" ::"r"(v.word[0]), "l"(p) : "memory");
  }
}

/// kN neighbours that are whole vectors, to a multiple of their size or of 16 bytes.
template <class T, int kN>
KF_DEVICE void store_run(T* p, const T (&value)[kN]) {
  constexpr int kMost = static_cast<int>(16 / sizeof(T)), kPiece = kN < kMost ? kN : kMost;
  static_assert(kN % kPiece == 0);
#pragma unroll
  for (int j = 0; j < kN; j += kPiece) {
    Vector<T, kPiece> v;
    memcpy(v.word, value + j, sizeof v.word);
    store_whole(p + j, v);
  }
}

/// kN neighbours from a multiple of 16 bytes on, however many. Not volatile: where a thread wants them again it need
/// not load them again.
template <class T, int kN, int kFrom = 0, int kPiece = static_cast<int>(16 / sizeof(T))>
KF_DEVICE void load_run(Vector<T, kN>& v, const T* p) {
  struct alignas(kPiece * sizeof(T)) Piece {
    T element[kPiece];
  };
  if constexpr (kFrom + kPiece <= kN) {
    const Piece piece = *reinterpret_cast<const Piece*>(p + kFrom);
    memcpy(reinterpret_cast<char*>(v.word) + kFrom * sizeof(T), &piece, sizeof piece);
    load_run<T, kN, kFrom + kPiece, kPiece>(v, p);
  } else if constexpr (kPiece > 1) {
    load_run<T, kN, kFrom, kPiece / 2>(v, p);
  }
}
template <class T, int kN>
KF_DEVICE Vector<T, kN> load_run(const T* p) {
  Vector<T, kN> v{};
  load_run(v, p);
  return v;
}

/// The first `count` of kN neighbours; zeros beyond. kWhole: all of them or none. kN = 1 needs no alignment.
template <int kN, bool kWhole, Use kUse, class T>
KF_DEVICE Vector<T, kN> load_vector(const T* p, int count) {
  if constexpr (kWhole || kN == 1) {
    return load_whole<kUse, T, kN>(p, count > 0);
  } else {
    if (count >= kN) return load_whole<kUse, T, kN>(p, true);
    Vector<T, kN> v{};
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (j < count) load_element(v, j, p + j);
    }
    return v;
  }
}
template <bool kWhole, class T, int kN>
KF_DEVICE void store_vector(T* p, const Vector<T, kN>& v, int count) {
  if constexpr (kWhole || kN == 1) {
    if (count > 0) store_whole(p, v);
  } else if (count >= kN) {
    store_whole(p, v);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (j < count) store_element(p + j, v, j);
    }
  }
}

// ---- elements at positions that are data ----------------------------------------------------------------------------

/// What is at an index that has no position: NaN, 0 of integers.
template <class T>
KF_DEVICE Compute<T> missing() {
  if constexpr (Compute<T>(1) / Compute<T>(2) != Compute<T>(0))
    return static_cast<Compute<T>>(__int_as_float(0x7fc00000));
  else
    return Compute<T>(0);
}

/// An axis of a table, and whether negative indices count from its end.
template <bool kFromEnd>
struct Positions {
  i64 extent, step;  ///< step: elements from position to position

  /// The position of `index`, if that is less than `extent`.
  KF_DEVICE u64 of(i64 index) const { return static_cast<u64>(kFromEnd && index < 0 ? index + extent : index); }
  KF_DEVICE bool has(u64 position) const { return position < static_cast<u64>(extent); }
};

/// Which of the neighbours that are numbered from `first` on has number `value`; one beyond them where none has.
template <class T>
KF_DEVICE u32 which_is(T value, T first) {
  if constexpr (sizeof(T) == 4) return static_cast<u32>(value) - static_cast<u32>(first);
  const u64 which = static_cast<u64>(value) - static_cast<u64>(first);
  return which >> 32 == 0 ? static_cast<u32>(which) : ~0u;
}

/// The element `p` is at position 0 of. Nothing is read where there is no position, or `exists` is false.
template <bool kFromEnd, class T>
KF_DEVICE Compute<T> taken(const T* p, const Positions<kFromEnd>& positions, i64 index, bool exists) {
  const u64 position = positions.of(index);
  if (!positions.has(position)) return missing<T>();
  return get(load_vector<1, true, Use::kAgain>(p + static_cast<i64>(position) * positions.step, exists), 0);
}

/// Elements of `count` of kN neighbours, all at one position.
template <int kN, bool kWhole, bool kFromEnd, class T>
KF_DEVICE Vector<T, kN> taken_vector(const T* p, const Positions<kFromEnd>& positions, i64 index, int count) {
  const u64 position = positions.of(index);
  if (positions.has(position))
    return load_vector<kN, kWhole, Use::kAgain>(p + static_cast<i64>(position) * positions.step, count);
  Compute<T> none[kN];
#pragma unroll
  for (int j = 0; j < kN; ++j) none[j] = missing<T>();
  return pack_vector<T>(none);
}

// ---- indices --------------------------------------------------------------------------------------------------------

/// An extent that 31-bit indices are divided by through a multiplication: n / d = (high(n * magic) + n) >> shift.
/// T. Granlund, P. Montgomery, "Division by invariant integers using multiplication", 1994.
template <class Index>
struct Extent {
  u32 extent, magic, shift, unused;
  KF_DEVICE int divides(int n) const {
    return static_cast<int>((__umulhi(static_cast<u32>(n), magic) + static_cast<u32>(n)) >> shift);
  }
};
template <>
struct Extent<i64> {
  i64 extent, unused;
  KF_DEVICE i64 divides(i64 n) const { return n / extent; }
};

/// kAxes nested axes, the last one fastest.
template <class Index, int kAxes>
struct Axes {
  i64 size;  ///< product of the extents
  i64 unused;
  Extent<Index> extents[kAxes];
};

/// Some neighbouring points of axes.
template <class Index, int kAxes>
struct Place {
  Index first;      ///< number of the first one
  int count;        ///< how many exist; none where <= 0
  Index at[kAxes];  ///< indices of the first one
  Index from;       ///< first - further
  int further = 0;  ///< what is static of `first`, so that it goes into the instruction that loads or stores

  /// Where it lies in a dense array.
  template <class T>
  KF_DEVICE T* in(T* array) const {
    return array + from + further;
  }
};

template <class Index, int kAxes>
KF_DEVICE Place<Index, kAxes> place(const Axes<Index, kAxes>& axes, Index first, int width) {
  Place<Index, kAxes> p;
  p.first = p.from = first;
  const Index rest = static_cast<Index>(axes.size) - first;
  p.count = rest < width ? static_cast<int>(rest) : width;
  Index n = first;
#pragma unroll
  for (int d = kAxes - 1; d > 0; --d) {
    const Index upper = axes.extents[d].divides(n);
    p.at[d] = n - upper * static_cast<Index>(axes.extents[d].extent);
    n = upper;
  }
  p.at[0] = n;
  return p;
}

/// The place of a vector's lane, where no vector crosses the end of the last axis.
template <class Index, int kAxes>
KF_DEVICE Place<Index, kAxes> lane_of(Place<Index, kAxes> p, int lane) {
  p.first += lane, p.from += lane, p.at[kAxes - 1] += lane;
  return p;
}

/// The elements of a vector that exist, one by one; `address(j)` is that of element j.
template <class T, int kN, class At, class Address>
KF_DEVICE Vector<T, kN> load_elements(const At& at, const Address& address) {
  Vector<T, kN> v{};
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (j < at.count) load_element(v, j, address(j));
  }
  return v;
}
template <class T, int kN, class At, class Address>
KF_DEVICE void store_elements(const Vector<T, kN>& v, const At& at, const Address& address) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (j < at.count) store_element(address(j), v, j);
  }
}

/// Tag of a sweep over the elements.
template <int kNumber>
struct Sweep {};

}  // namespace kfusion::device
