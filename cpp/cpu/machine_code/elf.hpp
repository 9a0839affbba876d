// Object code as LLVM writes it (ELF64, relocatable, little-endian), laid out in memory: the part of a linker that
// functions need which read their own constants and call few functions of the C library.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kfusion::cpu::elf {

/// The processor that an object is for, by ELF's number.
enum class Machine : std::uint16_t { kX86_64 = 62, kAArch64 = 183 };
#if defined(__aarch64__)
inline constexpr Machine kHost = Machine::kAArch64;
#else
inline constexpr Machine kHost = Machine::kX86_64;
#endif

/// An object that is damaged, for another processor, or has what kernels have not (data that is written, say).
struct BadObject : std::runtime_error {
  explicit BadObject(const std::string& why)
      : std::runtime_error("kfusion: a kernel's object code is refused: " + why) {}
};

/// An object whose layout is known. The file may come from anywhere: nothing outside of it is read, nothing outside of
/// `bytes()` is written, and what is not understood is refused. What its code does is not looked at.
class Object {
 public:
  /// Throws BadObject. `file` must live as long as this.
  Object(std::string_view file, Machine machine);

  /// Bytes of the sections in memory, and of jumps to the functions that it calls.
  std::size_t bytes() const { return bytes_; }
  /// Copies the sections to where they will stay, a page's start, and relocates them. Throws BadObject.
  void write(std::byte* to) const;

  struct Function {
    std::string_view name;
    std::size_t offset;  ///< from where the object is written to
  };
  const std::vector<Function>& functions() const { return functions_; }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  struct SectionHeader {
    std::uint32_t name, type;
    std::uint64_t flags, address, at, bytes;
    std::uint32_t link, info;
    std::uint64_t alignment, entry_bytes;
  };
  struct Section : SectionHeader {
    std::size_t offset = kNowhere;  ///< in memory
  };
  struct SymbolEntry {
    std::uint32_t name;
    unsigned char info, other;
    std::uint16_t section;
    std::uint64_t value, bytes;
  };

  template <class T>
  T read(std::uint64_t offset) const;
  std::string_view part(std::uint64_t offset, std::uint64_t bytes) const;
  std::string_view text(const Section& strings, std::uint32_t offset) const;

  const Section& section(std::uint64_t number) const;

  void read_sections();
  void place(bool executable);
  void read_symbols();
  std::size_t place_of(const SymbolEntry&, std::string_view name);
  void relocate(const Section& relocations, std::byte* to) const;

  std::string_view file_;
  Machine machine_;
  std::vector<Section> sections_;
  std::vector<std::size_t> symbols_;  ///< where each is in memory, or kNowhere
  std::vector<const void*> called_;   ///< functions of libraries, each with a jump to it behind the code
  std::vector<Function> functions_;
  std::size_t names_in_ = 0, jumps_at_ = 0, bytes_ = 0;
};

}  // namespace kfusion::cpu::elf
