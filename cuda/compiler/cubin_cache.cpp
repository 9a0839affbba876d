#include "compiler/cubin_cache.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>
#include <vector>

#include "compiler/digest.hpp"
#include "compiler/files.hpp"

namespace fs = std::filesystem;

namespace kfusion::compiler {
namespace {

constexpr std::string_view kMagic = "kfusion-cubin-1", kSuffix = ".cubin", kTemporarySuffix = ".tmp";
constexpr double kDefaultLimitMb = 256;
constexpr auto kLongestWrite = std::chrono::hours(1);  // a temporary file that is older was left by a process that died

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

fs::path directory_from_environment() {
  if (const std::string own = variable("KFUSION_CACHE_DIR"); !own.empty()) return own;
  if (const fs::path xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg / "kfusion";
  if (const std::string home = variable("HOME"); !home.empty()) return fs::path(home) / ".cache" / "kfusion";
  return {};
}

std::uint64_t limit_from_environment() {
  const std::string text = variable("KFUSION_CACHE_MB");
  char* end = nullptr;
  const double mb = std::strtod(text.c_str(), &end);
  const bool number = !text.empty() && *end == '\0' && mb >= 0 && mb <= 1e12;
  return static_cast<std::uint64_t>((number ? mb : kDefaultLimitMb) * 1e6);
}

/// The line that an entry begins with: whatever is not exactly this is no entry of this key.
std::string header(const std::string& key, std::string_view image) {
  return std::string(kMagic) + ' ' + key + ' ' + std::to_string(image.size()) + ' ' + Digest().add(image).hex() + '\n';
}

/// A name that no other thread of any process writes to.
fs::path temporary_beside(const fs::path& file) {
  std::random_device random;
  const std::string number = std::to_string(random()) + std::to_string(random());
  return file.parent_path() / (file.stem().string() + '-' + number + std::string(kTemporarySuffix));
}

struct File {
  fs::path path;
  std::uint64_t bytes;
  fs::file_time_type time;
};

/// The files of ours in a folder, of those that end with `suffix`. Others may remove them meanwhile.
std::vector<File> files(const fs::path& directory, std::string_view suffix) {
  std::vector<File> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (path.extension() != suffix) continue;
    std::error_code gone;
    const std::uint64_t bytes = fs::file_size(path, gone);
    const fs::file_time_type time = gone ? fs::file_time_type() : fs::last_write_time(path, gone);
    if (!gone) found.push_back({path, bytes, time});
  }
  return found;
}

CubinCache::Contents sum(const std::vector<File>& all) {
  CubinCache::Contents c{all.size(), 0};
  for (const File& file : all) c.bytes += file.bytes;
  return c;
}

void drop(const fs::path& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

/// Makes a folder, and one that did not exist for this user alone, as the XDG specification wants it.
void make_directory(const fs::path& directory, std::error_code& error) {
  if (fs::create_directories(directory, error))
    fs::permissions(directory, fs::perms::owner_all, fs::perm_options::replace, error);
}

/// All of `file` or nothing of it.
void write_whole(const fs::path& file, std::string_view head, std::string_view body, std::error_code& error) {
  const fs::path temporary = temporary_beside(file);
  OpenFile out = open_file(temporary, "wb");
  const auto put = [&out](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), out.get()) == text.size();
  };
  const bool written = out && put(head) && put(body);
  if (!out || std::fclose(out.release()) != 0 || !written) error = std::make_error_code(std::errc::io_error);
  if (!error) fs::rename(temporary, file, error);
  if (error) drop(temporary);
}

}  // namespace

CubinCache::CubinCache(fs::path directory, std::uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(directory_.empty() ? 0 : limit_bytes) {}

CubinCache CubinCache::from_environment() { return {directory_from_environment(), limit_from_environment()}; }

std::optional<std::string> CubinCache::read(const std::string& key) const {
  if (limit_bytes_ == 0) return {};
  const fs::path file = directory_ / (key + std::string(kSuffix));
  const std::string text = bytes_of(file, limit_bytes_);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos) return {};
  const std::string_view image = std::string_view(text).substr(line + 1);
  if (header(key, image) != std::string_view(text).substr(0, line + 1)) return {};
  std::error_code ignored;
  fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);  // trim() goes by it
  return text.substr(line + 1);
}

void CubinCache::write(const std::string& key, std::string_view image) const {
  const std::string head = header(key, image);
  if (head.size() + image.size() > limit_bytes_) return;
  std::error_code error;
  make_directory(directory_, error);
  if (!error) write_whole(directory_ / (key + std::string(kSuffix)), head, image, error);
  if (!error) trim();
}

void CubinCache::trim() const {
  const auto now = fs::file_time_type::clock::now();
  for (const File& file : files(directory_, kTemporarySuffix)) {
    if (now - file.time > kLongestWrite) drop(file.path);
  }
  std::vector<File> entries = files(directory_, kSuffix);
  std::uint64_t bytes = sum(entries).bytes;
  if (bytes <= limit_bytes_) return;
  std::sort(entries.begin(), entries.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (auto oldest = entries.begin(); bytes > limit_bytes_ && oldest != entries.end(); ++oldest) {
    drop(oldest->path);
    bytes -= oldest->bytes;
  }
}

CubinCache::Contents CubinCache::contents() const { return sum(files(directory_, kSuffix)); }

CubinCache::Contents CubinCache::clear() const {
  for (const File& file : files(directory_, kTemporarySuffix)) drop(file.path);
  const std::vector<File> entries = files(directory_, kSuffix);
  for (const File& file : entries) drop(file.path);
  const Contents before = sum(entries), after = contents();
  return {before.entries - after.entries, before.bytes - after.bytes};
}

std::string CubinCache::problem() const {
  if (directory_.empty()) return "none of KFUSION_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder";
  if (limit_bytes_ == 0) return "KFUSION_CACHE_MB is 0";
  std::error_code error;
  make_directory(directory_, error);
  if (error) return "the folder cannot be made: " + error.message();
  const fs::path probe = directory_ / "probe";
  write_whole(probe, "", "", error);
  drop(probe);
  return error ? "the folder cannot be written to" : "";
}

}  // namespace kfusion::compiler
