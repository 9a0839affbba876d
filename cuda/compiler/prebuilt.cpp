#include "compiler/prebuilt.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <unordered_map>

#include "cache/digest.hpp"
#include "cpu/platform.hpp"
#include "kfusion/files.hpp"

namespace fs = std::filesystem;

namespace kfusion::compiler {
namespace {

constexpr std::string_view kArchiveMagic = "kfusion-prebuilt-1", kArchiveSuffix = ".kernels";

/// A file: lines, of which the first is "<magic> <number of kernels>" and each other one is a kernel's
/// "<key> <entry> <offset> <bytes>", then images. Several kernels can be in one image.
class Archive {
 public:
  struct Place {
    std::string entry;
    std::uint64_t offset, bytes;  ///< behind the lines
  };

  Archive() = default;
  explicit Archive(const fs::path& file) : text_(bytes_of(file.string())) {
    if (word() != kArchiveMagic) return;
    for (std::uint64_t left = number(); left > 0 && at_ < text_.size(); --left) {
      keys.emplace_back(word());
      std::string entry(word());
      const std::uint64_t offset = number(), bytes = number();
      places_.emplace(keys.back(), Place{std::move(entry), offset, bytes});
    }
  }

  std::optional<Prebuilt> find(const std::string& key) const {
    const auto found = places_.find(key);
    if (found == places_.end()) return {};
    const auto& [entry, offset, bytes] = found->second;
    const std::uint64_t room = text_.size() - at_;
    if (offset > room || bytes > room - offset) return {};  // cut short
    return Prebuilt{text_.substr(at_ + offset, bytes), entry};
  }

  std::vector<std::string> keys;

 private:
  /// Up to the next space or the end of the line, which is left behind.
  std::string_view word() {
    const std::size_t begin = at_, end = std::min(text_.find_first_of(" \n", begin), text_.size());
    at_ = std::min(end + 1, text_.size());
    return std::string_view(text_).substr(begin, end - begin);
  }
  std::uint64_t number() {
    const std::string_view digits = word();
    std::uint64_t n = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), n);
    return n;
  }

  std::string text_;
  std::size_t at_ = 0;
  std::unordered_map<std::string, Place> places_;
};

/// The number in an architecture's name as CMake has it ("90", "80-real", "90a"), where its code runs on `wanted`, else
/// 0: machine code on later GPUs of its major version too, and on any later one what comes with PTX, which all has that
/// is not "-real". What ends in a letter runs on that architecture alone.
int suitable(std::string_view name, Architecture wanted) {
  int number = 0;
  const char* rest = std::from_chars(name.data(), name.data() + name.size(), number).ptr;
  const std::string_view kind(rest, name.data() + name.size());
  const int gpu = 10 * wanted.major + wanted.minor;
  const bool later = number < gpu && (kind.empty() || kind[0] == '-');
  const bool runs = number == gpu || (later && (number / 10 == wanted.major || kind != "-real"));
  return runs ? number : 0;
}

Archive read(Architecture wanted) {
  const fs::path folder = fs::path(cpu::library_of(reinterpret_cast<const void*>(&suitable))).parent_path();
  fs::path best;
  int newest = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder / "prebuilt", error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != kArchiveSuffix) continue;
    const int number = suitable(it->path().stem().string(), wanted);
    if (number > newest) newest = number, best = it->path();
  }
  return newest > 0 ? Archive(best) : Archive();
}

const Archive& archive_for(Architecture wanted) {
  static auto& known = *new std::map<std::string, Archive>;
  static auto& mutex = *new cpu::ForkSafeMutex;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known.try_emplace(wanted.digits());
  if (fresh) at->second = read(wanted);
  return at->second;
}

}  // namespace

std::string prebuilt_key(const Program& program) {
  cache::Digest digest;
  for (const char* option : options()) digest.add(option);
  for (const auto& [name, text] : program.headers) digest.add(name).add(text);
  return digest.add(program.name).add(program.source).hex();
}

std::vector<std::string> prebuilt_keys(Architecture architecture) { return archive_for(architecture).keys; }

std::optional<Prebuilt> prebuilt(const Program& program, Architecture architecture) {
  const Archive& archive = archive_for(architecture);
  return archive.keys.empty() ? std::nullopt : archive.find(prebuilt_key(program));
}

}  // namespace kfusion::compiler
