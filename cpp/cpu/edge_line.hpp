// Lines of an array that is stored past the caches, while they are not whole yet: neighbouring rows share one, or
// pieces of one row. Plain stores of its parts would wait until it has been read (rows of 16 KB took 0.4 us longer).
// Compiled once per instruction set.
#pragma once
#include "cpu/simd.hpp"

namespace kfusion::cpu {

/// The last few lines that came in parts. To read one while its stores are on their way would wait for all stores
/// before them: so each waits until some others have come.
struct EdgeLine {
  static constexpr unsigned kLines = 8;
  struct Line {
    alignas(64) std::byte bytes[64];
    std::byte* at = nullptr;          ///< where it belongs; nullptr: nothing waits
    std::int64_t begin = 0, end = 0;  ///< what has come of it
  };
  Line lines[kLines];
  unsigned last = 0;
};

namespace KF_ISA {
namespace {

KF_INLINE void stream_line(std::byte* to, const std::byte* from) {
  for (int b = 0; b < kLineBytes; b += kVectorBytes)
    stream(to + b, load<VectorOf<std::uint8_t, kVectorBytes>::Type>(from + b));
}

KF_INLINE void flush(EdgeLine::Line& e) {
  if (e.at == nullptr) return;
  if (e.end - e.begin == kLineBytes) {
    stream_line(e.at, e.bytes);
  } else {
    copy_short<kLineBytes>(e.at + e.begin, e.bytes + e.begin, static_cast<int>(e.end - e.begin));
  }
  e.at = nullptr;
}
/// Stores what waits.
KF_INLINE void flush(EdgeLine& e) {
  for (EdgeLine::Line& line : e.lines) flush(line);
}

/// Where to put what belongs to [to, to + n), a part of a line.
KF_INLINE std::byte* place(EdgeLine& e, std::byte* to, std::int64_t n) {
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) & (kLineBytes - 1));
  EdgeLine::Line* line = &e.lines[e.last];
  if (line->at != to - offset || line->end != offset) {
    e.last = (e.last + 1) % EdgeLine::kLines;
    line = &e.lines[e.last];
    flush(*line);
    line->at = to - offset, line->begin = offset;
  }
  line->end = offset + n;
  return line->bytes + offset;
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
