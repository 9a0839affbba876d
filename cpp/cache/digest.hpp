// Telling texts and images apart by 128 bits.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace kfusion::cache {

/// FNV-1a with 128 bits (G. Fowler, L. Noll, K. Vo, D. Eastlake, "The FNV Non-Cryptographic Hash Algorithm"). It tells
/// apart what programs produce, and finds damage; it is no protection against somebody who wants two equal digests.
class Digest {
 public:
  /// Adds a field. Its length counts: ("ab", "c") and ("a", "bc") differ.
  Digest& add(std::string_view field);
  /// 32 hexadecimal digits.
  std::string hex() const;

 private:
  void add_bytes(std::string_view bytes);

  std::uint64_t high_ = 0x6c62272e07bb0142, low_ = 0x62b821756295c58d;
};

}  // namespace kfusion::cache
