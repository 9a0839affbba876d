// Crossed operands: those whose neighbours lie along the loop's last axis instead of along the lanes, like a transposed
// matrix. A thread reads as many vectors of them as a vector has elements, and transposes them in its registers: all
// reads and writes are of whole vectors, without shared memory.
#pragma once
#include "device/vector.cuh"

namespace kfusion::device {

/// Element `i` of a vector becomes element `j` of another one, which was zero there; both constants after unrolling.
template <class T, int kN>
KF_DEVICE void move_element(const Vector<T, kN>& from, int i, Vector<T, kN>& to, int j) {
  if constexpr (sizeof(T) == 8) {
    to.word[2 * j] = from.word[2 * i];
    to.word[2 * j + 1] = from.word[2 * i + 1];
  } else {
    constexpr int kBits = 8 * static_cast<int>(sizeof(T)), kPer = 32 / kBits;
    const u32 element = from.word[i / kPer] >> (i % kPer * kBits) & (0xffffffffu >> (32 - kBits));
    to.word[j / kPer] |= element << (j % kPer * kBits);
  }
}

/// Transposes the vectors that kN structs have in one member.
template <class S, class T, int kN>
KF_DEVICE void transpose(S (&rows)[kN], Vector<T, kN> S::* member) {
  Vector<T, kN> result[kN] = {};
#pragma unroll
  for (int i = 0; i < kN; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) move_element(rows[j].*member, i, result[i], j);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) rows[i].*member = result[i];
}

}  // namespace kfusion::device
