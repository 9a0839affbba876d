#include "cache/platform.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <system_error>
#include <utility>

namespace fs = std::filesystem;

namespace kfusion::cache {
namespace {

constexpr mode_t kFolderMode = 0700, kFileMode = 0600, kOthersWrite = S_IWGRP | S_IWOTH;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  bool close() { return number_ < 0 || ::close(release()) == 0; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

std::string error_text() {
  if (errno == ENOTDIR || errno == ELOOP) return "it is no folder, or a link to one";
  return std::error_code(errno, std::generic_category()).message();
}

std::int64_t nanoseconds(const timespec& t) { return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

timespec modified(const struct stat& s) {
#if defined(__APPLE__)
  return s.st_mtimespec;
#else
  return s.st_mtim;
#endif
}

bool is_private(const struct stat& s) { return s.st_uid == geteuid() && (s.st_mode & kOthersWrite) == 0; }
bool is_own_file(const struct stat& s) { return S_ISREG(s.st_mode) && is_private(s); }

void make_folders(const fs::path& path) {
  fs::path made;
  for (const fs::path& part : path) {
    made /= part;
    mkdir(made.c_str(), kFolderMode);  // one that is there stays as it is
  }
}

/// Whether all bytes were written.
bool put(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

/// Up to text.size() bytes; how many there were.
std::size_t get(int file, std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

}  // namespace

PrivateFolder::PrivateFolder(const fs::path& path, bool make) {
  if (make) make_folders(path);
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat s;
  if (!folder || fstat(folder.get(), &s) != 0)
    problem_ = path.string() + (make ? " cannot be made or opened: " : " cannot be opened: ") + error_text();
  else if (s.st_uid != geteuid())
    problem_ = path.string() + " belongs to another user, who could put other machine code there";
  else if (!is_private(s))
    problem_ = path.string() + " can be written to by others, who could put other machine code there (chmod 700 it)";
  else
    folder_ = folder.release();
}

PrivateFolder::~PrivateFolder() { Descriptor(folder_).close(); }

bool PrivateFolder::is_writable() const { return faccessat(folder_, ".", W_OK | X_OK, AT_EACCESS) == 0; }

std::vector<PrivateFolder::File> PrivateFolder::files() const {
  std::vector<File> found;
  Descriptor again(openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // the list takes it, and closes it
  const std::unique_ptr<DIR, int (*)(DIR*)> list(again ? fdopendir(again.get()) : nullptr, &closedir);
  if (!list) return found;
  again.release();
  while (const dirent* entry = readdir(list.get())) {
    struct stat s;
    if (fstatat(folder_, entry->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && is_own_file(s))
      found.push_back({entry->d_name, static_cast<std::uint64_t>(s.st_size), nanoseconds(modified(s))});
  }
  return found;
}

std::string PrivateFolder::read(const std::string& name, std::uint64_t most) const {
  // Without O_NONBLOCK a pipe of that name would wait for a writer.
  const Descriptor file(openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat s;
  if (!file || fstat(file.get(), &s) != 0 || !is_own_file(s)) return {};
  std::string text(std::min(static_cast<std::uint64_t>(s.st_size), most), '\0');
  text.resize(get(file.get(), text));
  return text;
}

void PrivateFolder::touch(const std::string& name) const {
  utimensat(folder_, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

void PrivateFolder::remove(const std::string& name) const { unlinkat(folder_, name.c_str(), 0); }

bool PrivateFolder::write(const std::string& name, const std::string& temporary, std::string_view head,
                          std::string_view body) const {
  Descriptor file(openat(folder_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!file) return false;
  bool done = put(file.get(), head) && put(file.get(), body);
  done = file.close() && done && renameat(folder_, temporary.c_str(), folder_, name.c_str()) == 0;
  if (!done) remove(temporary);
  return done;
}

std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return nanoseconds(t);
}

}  // namespace kfusion::cache
