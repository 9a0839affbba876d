#include "cpu/machine_code/elf.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "cpu/machine_code/relocation.hpp"
#include "cpu/move.hpp"

namespace kfusion::cpu::elf {
namespace {

// Numbers of the format ("System V ABI", chapters 4 and 5).
struct FileHeader {
  unsigned char magic[4], is_64, is_little, rest[10];
  std::uint16_t type, machine;
  std::uint32_t version;
  std::uint64_t entry, programs_at, sections_at;
  std::uint32_t flags;
  std::uint16_t header_bytes, program_bytes, programs, section_bytes, sections, names_in;
};
static_assert(sizeof(FileHeader) == 64);

struct Relocation {
  std::uint64_t offset;
  std::uint32_t kind, symbol;
  std::int64_t addend;
};
static_assert(sizeof(Relocation) == 24);

constexpr unsigned char kMagic[] = {0x7f, 'E', 'L', 'F'};
constexpr std::uint16_t kRelocatable = 1;
constexpr std::uint32_t kProgramBits = 1, kSymbols = 2, kRelocations = 4, kNoBits = 8, kRelocationsInPlace = 9;
constexpr std::uint64_t kWritten = 1, kInMemory = 2, kExecutable = 4;
constexpr std::uint16_t kUndefined = 0, kFirstReserved = 0xff00;
constexpr unsigned kFunction = 2, kGlobal = 1;
constexpr std::uint64_t kMostAlignment = 4096, kMostBytes = 1u << 30;
constexpr std::int64_t kSlack = 64;  // an operand's addend counts from its instruction's end

void require(bool so, const char* what) {
  if (!so) throw BadObject(what);
}

std::size_t aligned(std::size_t offset, std::size_t to) { return (offset + to - 1) / to * to; }

template <class... Args>
const void* of_double(double (*f)(Args...)) {
  return reinterpret_cast<const void*>(f);
}
template <class... Args>
const void* of_float(float (*f)(Args...)) {
  return reinterpret_cast<const void*>(f);
}

struct LibraryFunction {
  std::string_view name;
  const void* address;
};

/// What LLVM calls in place of instructions that a processor has not. Nothing else may be called by name.
const LibraryFunction kLibraryFunctions[] = {
    {"memcpy", reinterpret_cast<const void*>(&move_bytes)},
    {"memmove", reinterpret_cast<const void*>(&move_bytes)},
    {"memset", reinterpret_cast<const void*>(&std::memset)},
    {"fma", of_double<double, double, double>(::fma)},
    {"fmod", of_double<double, double>(::fmod)},
    {"ceil", of_double<double>(::ceil)},
    {"floor", of_double<double>(::floor)},
    {"trunc", of_double<double>(::trunc)},
    {"rint", of_double<double>(::rint)},
    {"nearbyint", of_double<double>(::nearbyint)},
    {"fmaf", of_float<float, float, float>(::fmaf)},
    {"fmodf", of_float<float, float>(::fmodf)},
    {"ceilf", of_float<float>(::ceilf)},
    {"floorf", of_float<float>(::floorf)},
    {"truncf", of_float<float>(::truncf)},
    {"rintf", of_float<float>(::rintf)},
    {"nearbyintf", of_float<float>(::nearbyintf)},
};

/// A name as a message can have it: the file may be damaged.
std::string printable(std::string_view name) {
  constexpr std::size_t kMost = 60;
  std::string text(name.substr(0, kMost));
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

/// Whether a section is loaded. How functions are unwound (none throws) and notes to a linker are not.
bool is_needed(std::string_view section) { return !section.starts_with(".eh_frame") && !section.starts_with(".note"); }

}  // namespace

template <class T>
T Object::read(std::uint64_t offset) const {
  constexpr std::size_t kBytes = sizeof(T);
  T value;
  std::memcpy(&value, part(offset, kBytes).data(), kBytes);
  return value;
}

std::string_view Object::part(std::uint64_t offset, std::uint64_t bytes) const {
  require(offset <= file_.size() && bytes <= file_.size() - offset, "it is cut short");
  return file_.substr(offset, bytes);
}

std::string_view Object::text(const Section& strings, std::uint32_t offset) const {
  const std::string_view all = part(strings.at, strings.bytes);
  require(offset < all.size(), "a name lies outside of the names");
  const std::size_t end = all.find('\0', offset);
  require(end != std::string_view::npos, "a name has no end");
  return all.substr(offset, end - offset);
}

const Object::Section& Object::section(std::uint64_t number) const {
  require(number < sections_.size(), "a section is missing");
  return sections_[number];
}

Object::Object(std::string_view file, Machine machine) : file_(file), machine_(machine) {
  read_sections();
  for (const bool executable : {true, false}) place(executable);
  jumps_at_ = bytes_ = aligned(bytes_, kJumpBytes);
  require(bytes_ > 0, "it has no code");
  read_symbols();
  bytes_ += called_.size() * kJumpBytes;
}

void Object::read_sections() {
  const auto header = read<FileHeader>(0);
  require(std::ranges::equal(header.magic, kMagic) && header.is_64 == 2 && header.is_little == 1, "it is no ELF64");
  require(header.type == kRelocatable, "it is not relocatable");
  require(header.machine == static_cast<std::uint16_t>(machine_), "it is for another processor");
  require(header.section_bytes == sizeof(SectionHeader), "its sections have another form");
  for (std::uint64_t i = 0; i < header.sections; ++i)
    sections_.push_back({read<SectionHeader>(header.sections_at + i * sizeof(SectionHeader))});
  names_in_ = header.names_in;
}

/// Puts the sections of code, or those of constants, behind what is placed.
void Object::place(bool executable) {
  for (Section& s : sections_) {
    const bool wanted = (s.flags & kInMemory) != 0 && ((s.flags & kExecutable) != 0) == executable && s.bytes > 0;
    if (!wanted || !is_needed(text(section(names_in_), s.name))) continue;
    require(s.type == kProgramBits && (s.flags & kWritten) == 0, "it has data that is written");
    require(s.alignment <= kMostAlignment && (s.alignment & (s.alignment - 1)) == 0, "a section's alignment is odd");
    s.offset = aligned(bytes_, std::max<std::size_t>(s.alignment, 1));
    bytes_ = s.offset + part(s.at, s.bytes).size();
    require(bytes_ <= kMostBytes, "it is too large");
  }
}

void Object::read_symbols() {
  const auto table = std::ranges::find(sections_, kSymbols, &Section::type);
  require(table != sections_.end(), "it has no symbols");
  const Section& names = section(table->link);
  for (std::uint64_t i = 0; i < table->bytes / sizeof(SymbolEntry); ++i) {
    const auto entry = read<SymbolEntry>(table->at + i * sizeof(SymbolEntry));
    const std::string_view name = text(names, entry.name);
    symbols_.push_back(i == 0 ? kNowhere : place_of(entry, name));
    const bool is_function = entry.info == (kGlobal << 4 | kFunction) && entry.section != kUndefined;
    if (!is_function) continue;
    require((section(entry.section).flags & kExecutable) != 0, "a function is no code");
    require(entry.value < section(entry.section).bytes, "a function lies outside of its section");
    require(symbols_.back() != kNowhere, "a function is not in memory");
    functions_.push_back({name, symbols_.back()});
  }
}

/// Where a symbol is in memory: of a function of a library, the jump to it. kNowhere: it is not in memory.
std::size_t Object::place_of(const SymbolEntry& entry, std::string_view name) {
  if (entry.section == kUndefined) {
    const auto* const called = std::ranges::find(kLibraryFunctions, name, &LibraryFunction::name);
    if (called == std::end(kLibraryFunctions)) throw BadObject("it refers to " + printable(name));
    called_.push_back(called->address);
    return jumps_at_ + (called_.size() - 1) * kJumpBytes;
  }
  if (entry.section >= kFirstReserved) return kNowhere;  // the name of a source file, a number
  const Section& home = section(entry.section);
  require(entry.value <= home.bytes, "a symbol lies outside of its section");
  return home.offset == kNowhere ? kNowhere : home.offset + entry.value;
}

void Object::write(std::byte* to) const {
  for (const Section& s : sections_) {
    if (s.offset != kNowhere) std::ranges::copy(std::as_bytes(std::span(part(s.at, s.bytes))), to + s.offset);
  }
  for (std::size_t i = 0; i < called_.size(); ++i) write_jump(machine_, to + jumps_at_ + i * kJumpBytes, called_[i]);
  for (const Section& s : sections_) {
    const bool relocates = s.type == kRelocations || s.type == kRelocationsInPlace;
    if (!relocates || section(s.info).offset == kNowhere) continue;
    require(s.type == kRelocations, "its relocations have another form");
    relocate(s, to);
  }
}

void Object::relocate(const Section& relocations, std::byte* to) const {
  const Section& home = section(relocations.info);
  for (std::uint64_t i = 0; i < relocations.bytes / sizeof(Relocation); ++i) {
    const auto r = read<Relocation>(relocations.at + i * sizeof(Relocation));
    require(r.symbol < symbols_.size() && symbols_[r.symbol] != kNowhere, "a relocation has no target");
    require(r.offset < home.bytes, "a relocation lies outside of its section");
    const auto target = static_cast<std::int64_t>(symbols_[r.symbol]);
    const auto most = static_cast<std::int64_t>(bytes_);
    require(r.addend >= -most - kSlack && r.addend <= most, "a relocation points outside of the object");
    require(target + r.addend >= -kSlack && target + r.addend <= most, "a relocation points outside of the object");
    std::byte* const place = to + home.offset + r.offset;
    elf::relocate(machine_, r.kind,
                  {place, home.bytes - r.offset, reinterpret_cast<std::intptr_t>(place),
                   reinterpret_cast<std::intptr_t>(to) + target + r.addend});
  }
}

}  // namespace kfusion::cpu::elf
