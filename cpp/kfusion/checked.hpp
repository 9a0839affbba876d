// Counts that do not wrap: one beyond 2^63 - 1 is an error (OverflowError in Python), never a small number.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kfusion {

inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what = "bytes") {
  if (__builtin_add_overflow(a, b, &a)) throw std::overflow_error(std::string("more than 2^63 - 1 ") + what);
  return a;
}

inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b, const char* what = "bytes") {
  if (__builtin_mul_overflow(a, b, &a)) throw std::overflow_error(std::string("more than 2^63 - 1 ") + what);
  return a;
}

}  // namespace kfusion
