// A line of an array that is stored past the caches, while it is not whole yet: neighbouring rows share it, or pieces
// of one row. Plain stores of its parts would wait until it has been read (rows of 16 KB took 0.4 us longer). Compiled
// once per instruction set.
#pragma once
#include "cpu/simd.hpp"

namespace kfusion::cpu {

struct EdgeLine {
  alignas(64) std::byte bytes[64];
  std::byte* line = nullptr;        ///< where it belongs; nullptr: nothing waits
  std::int64_t begin = 0, end = 0;  ///< what has come of it
};

namespace KF_ISA {
namespace {

KF_INLINE void stream_line(std::byte* to, const std::byte* from) {
  for (int b = 0; b < kLineBytes; b += kVectorBytes)
    stream(to + b, load<VectorOf<std::uint8_t, kVectorBytes>::Type>(from + b));
}

/// Stores what waits.
KF_INLINE void flush(EdgeLine& e) {
  if (e.line == nullptr) return;
  if (e.end - e.begin == kLineBytes) {
    stream_line(e.line, e.bytes);
  } else {
    copy_short<kLineBytes>(e.line + e.begin, e.bytes + e.begin, static_cast<int>(e.end - e.begin));
  }
  e.line = nullptr;
}

/// Where to put what belongs to [to, to + n), a part of a line. A line that is whole waits for the next call: to read
/// it while its stores are on their way would wait for all stores before them.
KF_INLINE std::byte* place(EdgeLine& e, std::byte* to, std::int64_t n) {
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) & (kLineBytes - 1));
  if (e.line != to - offset || e.end != offset) {
    flush(e);
    e.line = to - offset, e.begin = offset;
  }
  e.end = offset + n;
  return e.bytes + offset;
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
