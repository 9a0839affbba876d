// What the cache on disk asks the operating system for: a folder that nobody else can write to. All POSIX calls of this
// folder's files are in platform.cpp.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kfusion::cache {

/// A folder that belongs to this user and that nobody else may write to. It is held open and its files are reached
/// through it, so that nobody can put another folder in its place meanwhile; what lies above it does not matter.
///
/// A file in it counts where it is a plain file, no link, belongs to this user, and nobody else may write to it. Any
/// other is as if it were not there. Nothing here throws but for lack of memory.
class PrivateFolder {
 public:
  /// Opens the folder; `make`: makes it, and those above it, for this user alone where they are not there.
  PrivateFolder(const std::filesystem::path& path, bool make);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  /// Why it is not used; empty where it is. Where it is not, there are no files, and none can be written.
  const std::string& problem() const { return problem_; }
  bool is_writable() const;

  struct File {
    std::string name;
    std::uint64_t bytes;
    std::int64_t time_ns;  ///< when it was written or touched last
  };
  std::vector<File> files() const;

  /// The first `most` bytes of a file; empty where there is none.
  std::string read(const std::string& name, std::uint64_t most) const;
  void touch(const std::string& name) const;
  void remove(const std::string& name) const;
  /// All of `name` or nothing of it: through the file `temporary`, which must not be there. Whether that worked.
  bool write(const std::string& name, const std::string& temporary, std::string_view head, std::string_view body) const;

 private:
  int folder_ = -1;
  std::string problem_;
};

/// Seconds since 1970 in nanoseconds, by the clock that files have.
std::int64_t now_ns();

}  // namespace kfusion::cache
