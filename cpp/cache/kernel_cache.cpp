#include "cache/kernel_cache.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>
#include <vector>

#include "cache/digest.hpp"
#include "cache/environment.hpp"
#include "cache/platform.hpp"
#include "kfusion/error.hpp"

namespace fs = std::filesystem;

namespace kfusion::cache {
namespace {

using File = PrivateFolder::File;
using Files = std::vector<File>;

constexpr std::string_view kEntryMagic = "kfusion-kernel-1 ", kEntrySuffix = ".kernel", kTemporarySuffix = ".tmp";
constexpr std::size_t kKeyDigits = 32, kTemporaryDigits = 16;
constexpr double kDefaultLimitMb = 256, kMostMb = 1e12;
constexpr std::uint64_t kTrimsPerLimit = 16;
constexpr std::int64_t kLongestWriteNs = 3'600'000'000'000;  // an older temporary file was left by a process that died

/// A folder, or the way to one that is yet to be made.
bool may_be_folder(fs::path path) {
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return fs::is_directory(path, ignored);
}

fs::path parent_from_environment() {
  if (const std::string own = variable("KFUSION_CACHE_DIR"); !own.empty()) {
    if (fs::path(own).is_absolute() && may_be_folder(own)) return own;
    throw ValueError("kfusion: KFUSION_CACHE_DIR must be the absolute path of a folder, got '" + own + "'");
  }
  if (const fs::path xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg;
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache";
  return {};
}

fs::path directory_from_environment() {
  const fs::path parent = parent_from_environment();
  return parent.empty() ? parent : parent / "kfusion";
}

std::uint64_t limit_from_environment() {
  const std::string text = variable("KFUSION_CACHE_MB");
  char* end = nullptr;
  const double mb = text.empty() ? kDefaultLimitMb : std::strtod(text.c_str(), &end);
  if ((end && (end == text.c_str() || *end != '\0')) || !(mb >= 0 && mb <= kMostMb))
    throw ValueError("kfusion: KFUSION_CACHE_MB must be a number of megabytes, 0 or more, got '" + text + "'");
  return static_cast<std::uint64_t>(mb * 1e6);
}

/// The line that an entry begins with: whatever is not exactly this is no entry of this key.
std::string header(const std::string& key, std::string_view image) {
  return std::string(kEntryMagic) + key + ' ' + std::to_string(image.size()) + ' ' + Digest().add(image).hex() + '\n';
}

std::string entry_name(const std::string& key) { return key + std::string(kEntrySuffix); }

/// A name that no other thread of any process writes to.
std::string temporary_name(const std::string& key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string number;
  for (std::size_t i = 0; i < kTemporaryDigits; ++i) number += kDigits[random() % 16];
  return key + '-' + number + std::string(kTemporarySuffix);
}

bool are_digits(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

bool is_entry_name(std::string_view name) {
  return name.size() == kKeyDigits + kEntrySuffix.size() && name.ends_with(kEntrySuffix) &&
         are_digits(name.substr(0, kKeyDigits));
}

bool is_temporary_name(std::string_view name) {
  return name.size() == kKeyDigits + 1 + kTemporaryDigits + kTemporarySuffix.size() &&
         name.ends_with(kTemporarySuffix) && name[kKeyDigits] == '-' && are_digits(name.substr(0, kKeyDigits)) &&
         are_digits(name.substr(kKeyDigits + 1, kTemporaryDigits));
}

/// Whether a file of such a name begins as ours do, or was cut short before it could.
bool is_ours(const PrivateFolder& folder, const File& file) {
  const std::string ours = std::string(kEntryMagic) + file.name.substr(0, kKeyDigits) + ' ';
  return ours.starts_with(folder.read(file.name, ours.size()));
}

/// Those with a name of ours; whether they are ours is seen when it matters, since files must be opened for it.
Files named(const PrivateFolder& folder, bool (*is_name)(std::string_view)) {
  Files all = folder.files();
  std::erase_if(all, [&](const File& file) { return !is_name(file.name); });
  return all;
}

Files entries(const PrivateFolder& folder) {
  Files all = named(folder, is_entry_name);
  std::erase_if(all, [&](const File& file) { return !is_ours(folder, file); });
  return all;
}

/// Whether it was a file of ours.
bool remove(const PrivateFolder& folder, const File& file) {
  const bool ours = is_ours(folder, file);
  if (ours) folder.remove(file.name);
  return ours;
}

KernelCache::Contents sum(const Files& all) {
  KernelCache::Contents c{all.size(), 0};
  for (const File& file : all) c.bytes += file.bytes;
  return c;
}

void trim(const PrivateFolder& folder, std::uint64_t limit_bytes) {
  const std::int64_t now = now_ns();
  for (const File& file : named(folder, is_temporary_name)) {
    if (now - file.time_ns > kLongestWriteNs) remove(folder, file);
  }
  Files all = named(folder, is_entry_name);
  std::uint64_t bytes = sum(all).bytes;
  if (bytes <= limit_bytes) return;
  std::ranges::sort(all, {}, &File::time_ns);
  for (auto oldest = all.begin(); bytes > limit_bytes && oldest != all.end(); ++oldest) {
    if (remove(folder, *oldest)) bytes -= oldest->bytes;
  }
}

// Since the folder was looked through last: looking at each of thousands of entries takes longer than compiling one.
std::atomic<std::size_t> trimmed_folder{0};
std::atomic<std::uint64_t> written_bytes{0};

/// Whether the folder is to be looked through now that so many bytes were written to it.
bool is_time_to_trim(const fs::path& directory, std::uint64_t limit_bytes, std::uint64_t bytes) {
  const std::size_t folder = fs::hash_value(directory) ^ limit_bytes;
  const bool known = trimmed_folder.exchange(folder) == folder;
  if (known && written_bytes.fetch_add(bytes) + bytes <= limit_bytes / kTrimsPerLimit) return false;
  written_bytes = 0;
  return true;
}

/// On stderr: nobody can be asked for the GIL here, and a warning would fail the call where warnings are errors.
void say_once(const std::string& why) {
  static std::atomic_flag said;
  if (!said.test_and_set())
    std::fprintf(
        stderr,
        "kfusion: compiled kernels are not kept on disk: %s; set KFUSION_CACHE_DIR to a folder of your own, or "
        "KFUSION_CACHE_MB=0 to keep none\n",
        why.c_str());
}

constexpr const char* kNoFolder = "none of KFUSION_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder";

}  // namespace

KernelCache::KernelCache(fs::path directory, std::uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {}

KernelCache KernelCache::from_environment() { return {directory_from_environment(), limit_from_environment()}; }

std::optional<std::string> KernelCache::read(const std::string& key) const {
  if (directory_.empty() || limit_bytes_ == 0) return {};
  const PrivateFolder folder(directory_, /*make=*/false);
  const std::string name = entry_name(key), text = folder.read(name, limit_bytes_);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) return {};
  const std::string_view image = std::string_view(text).substr(line + 1);
  if (header(key, image) != std::string_view(text).substr(0, line + 1)) return {};
  folder.touch(name);  // trim() goes by it
  return text.substr(line + 1);
}

std::string KernelCache::write(const std::string& key, std::string_view image) const {
  if (limit_bytes_ == 0) return {};
  if (directory_.empty()) return kNoFolder;
  const std::string head = header(key, image);
  if (head.size() + image.size() > limit_bytes_) return {};
  const PrivateFolder folder(directory_, /*make=*/true);
  if (!folder.problem().empty()) return folder.problem();
  if (!folder.write(entry_name(key), temporary_name(key), head, image))
    return directory_.string() + " cannot be written to";
  if (is_time_to_trim(directory_, limit_bytes_, head.size() + image.size())) trim(folder, limit_bytes_);
  return {};
}

void KernelCache::keep(const std::string& key, std::string_view image) const {
  if (const std::string why = write(key, image); !why.empty()) say_once(why);
}

KernelCache::Contents KernelCache::contents() const {
  return directory_.empty() ? Contents() : sum(entries(PrivateFolder(directory_, /*make=*/false)));
}

KernelCache::Contents KernelCache::clear() const {
  if (directory_.empty()) return {};
  const PrivateFolder folder(directory_, /*make=*/false);
  for (const File& file : named(folder, is_temporary_name)) remove(folder, file);
  const Contents before = sum(entries(folder));
  for (const File& file : named(folder, is_entry_name)) remove(folder, file);
  const Contents after = sum(entries(folder));
  return {before.entries - after.entries, before.bytes - after.bytes};
}

std::string KernelCache::problem() const {
  if (directory_.empty()) return kNoFolder;
  if (limit_bytes_ == 0) return "KFUSION_CACHE_MB is 0";
  const PrivateFolder folder(directory_, /*make=*/true);
  if (!folder.problem().empty()) return folder.problem();
  return folder.is_writable() ? "" : directory_.string() + " cannot be written to";
}

}  // namespace kfusion::cache
