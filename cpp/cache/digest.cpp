#include "cache/digest.hpp"

#include <cstdio>

namespace kfusion::cache {

void Digest::add_bytes(std::string_view bytes) {
  // The prime is 2^88 + 0x13b: modulo 2^128 a product is a shift and a product with a small number.
  constexpr std::uint64_t kSmall = 0x13b;
  constexpr int kHalf = 32, kShift = 88 - 64;
  for (const char c : bytes) {
    low_ ^= static_cast<unsigned char>(c);
    const std::uint64_t first = (low_ & 0xffffffff) * kSmall, second = (low_ >> kHalf) * kSmall + (first >> kHalf);
    high_ = high_ * kSmall + (low_ << kShift) + (second >> kHalf);
    low_ *= kSmall;
  }
}

Digest& Digest::add(std::string_view field) {
  add_bytes(std::to_string(field.size()) + ":");
  add_bytes(field);
  return *this;
}

std::string Digest::hex() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high_),
                static_cast<unsigned long long>(low_));
  return text;
}

}  // namespace kfusion::cache
