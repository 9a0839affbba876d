#include "cpu/machine_code/relocation.hpp"

#include <cstring>
#include <string>

namespace kfusion::cpu::elf {
namespace {

// Names and numbers of the processors' ELF supplements: "System V ABI, AMD64", "ELF for the Arm 64-bit Architecture".
enum X86_64 : std::uint32_t { kX64 = 1, kXPc32 = 2, kXPlt32 = 4, kXPc64 = 24 };
enum AArch64 : std::uint32_t {
  kAbs64 = 257,
  kPrel64 = 260,
  kPrel32 = 261,
  kAdrPrelPgHi21 = 275,
  kAddAbsLo12Nc = 277,
  kLdst8AbsLo12Nc = 278,
  kJump26 = 282,
  kCall26 = 283,
  kLdst16AbsLo12Nc = 284,
  kLdst32AbsLo12Nc = 285,
  kLdst64AbsLo12Nc = 286,
  kLdst128AbsLo12Nc = 299,
};

constexpr std::int64_t kPageBytes = 4096;

void check(bool fits, const char* what) {
  if (!fits) throw BadObject(std::string("a relocation ") + what);
}

bool fits_in(std::int64_t value, int bits) { return value >= -(1LL << (bits - 1)) && value < 1LL << (bits - 1); }

template <class T>
void put(const Place& at, std::int64_t value) {
  check(at.room >= sizeof(T), "is not within its section");
  const T bits = static_cast<T>(value);
  std::memcpy(at.bytes, &bits, sizeof bits);
}

void put_near(const Place& at) {
  check(fits_in(at.target - at.address, 32), "points too far");
  put<std::int32_t>(at, at.target - at.address);
}

/// Sets `bits` bits of an instruction, from bit `first` on.
void set(const Place& at, std::int64_t value, int first, int bits) {
  check(at.room >= sizeof(std::uint32_t), "is not within its section");
  std::uint32_t instruction;
  std::memcpy(&instruction, at.bytes, sizeof instruction);
  const std::uint32_t mask = ((1u << bits) - 1) << first;
  instruction = (instruction & ~mask) | ((static_cast<std::uint32_t>(value) << first) & mask);
  std::memcpy(at.bytes, &instruction, sizeof instruction);
}

/// The low 12 bits of an address, in units of what is loaded.
void set_low(const Place& at, int shift) {
  check((at.target & ((1 << shift) - 1)) == 0, "points to what is not aligned");
  set(at, (at.target & (kPageBytes - 1)) >> shift, 10, 12);
}

void set_page(const Place& at) {
  const std::int64_t pages = (at.target & -kPageBytes) / kPageBytes - (at.address & -kPageBytes) / kPageBytes;
  check(fits_in(pages, 21), "points too far");
  set(at, pages, 29, 2);
  set(at, pages >> 2, 5, 19);
}

void set_branch(const Place& at) {
  const std::int64_t way = at.target - at.address;
  check(fits_in(way, 28) && way % 4 == 0, "jumps too far");
  set(at, way >> 2, 0, 26);
}

bool relocate_x86_64(std::uint32_t kind, const Place& at) {
  switch (kind) {
    case kX64:
      put<std::int64_t>(at, at.target);
      return true;
    case kXPc64:
      put<std::int64_t>(at, at.target - at.address);
      return true;
    case kXPc32:
    case kXPlt32:
      put_near(at);
      return true;
    default:
      return false;
  }
}

bool relocate_aarch64(std::uint32_t kind, const Place& at) {
  switch (kind) {
    case kAbs64:
      put<std::int64_t>(at, at.target);
      return true;
    case kPrel64:
      put<std::int64_t>(at, at.target - at.address);
      return true;
    case kPrel32:
      put_near(at);
      return true;
    case kAdrPrelPgHi21:
      set_page(at);
      return true;
    case kAddAbsLo12Nc:
    case kLdst8AbsLo12Nc:
      set_low(at, 0);
      return true;
    case kLdst16AbsLo12Nc:
      set_low(at, 1);
      return true;
    case kLdst32AbsLo12Nc:
      set_low(at, 2);
      return true;
    case kLdst64AbsLo12Nc:
      set_low(at, 3);
      return true;
    case kLdst128AbsLo12Nc:
      set_low(at, 4);
      return true;
    case kJump26:
    case kCall26:
      set_branch(at);
      return true;
    default:
      return false;
  }
}

}  // namespace

void relocate(Machine machine, std::uint32_t kind, const Place& at) {
  const bool known = machine == Machine::kX86_64 ? relocate_x86_64(kind, at) : relocate_aarch64(kind, at);
  if (!known) throw BadObject("a relocation of kind " + std::to_string(kind));
}

void write_jump(Machine machine, std::byte* to, const void* target) {
  constexpr unsigned char kX86[] = {0xff, 0x25, 0, 0, 0, 0};                    // jmp *0(%rip), which is at byte 6
  constexpr unsigned char kArm[] = {0x50, 0, 0, 0x58, 0x00, 0x02, 0x1f, 0xd6};  // ldr x16, .+8; br x16
  const bool x86 = machine == Machine::kX86_64;
  const std::size_t bytes = x86 ? sizeof kX86 : sizeof kArm;
  std::memcpy(to, x86 ? kX86 : kArm, bytes);
  std::memcpy(to + bytes, &target, sizeof target);
}

}  // namespace kfusion::cpu::elf
