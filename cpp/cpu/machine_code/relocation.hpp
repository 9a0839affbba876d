// How an address is written into machine code, by processor.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/machine_code/elf.hpp"

namespace kfusion::cpu::elf {

/// A place in machine code that is to hold an address, or the way to one.
struct Place {
  std::byte* bytes;      ///< where it is
  std::size_t room;      ///< bytes from there to its section's end
  std::int64_t address;  ///< of itself
  std::int64_t target;
};

/// Writes one of the kinds of relocation that kernels have. Throws BadObject for any other, and where the place has no
/// room or the target is too far.
void relocate(Machine, std::uint32_t kind, const Place&);

inline constexpr std::size_t kJumpBytes = 16;
/// Writes kJumpBytes of code that go on at `target`, however far.
void write_jump(Machine, std::byte* to, const void* target);

}  // namespace kfusion::cpu::elf
