// Compiled kernels on disk: a folder of files that any number of processes of one user read and write at once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kfusion::cache {

/// A file per entry, `<key>.kernel`: one line of text (what it is, its key, its length and digest), then the image: of
/// a GPU, or object code of the CPU. Keys are digests of all that an image depends on, its kind first.
/// - Machine code is run as it is found: the folder and the entry must belong to this user, and nobody else may write
///   to them, else they are not used (PrivateFolder).
/// - Files are written beside their place and renamed into it: readers see all of an entry or nothing.
/// - An entry that is damaged or cut short counts as absent; the next write replaces it.
/// - Beyond `limit_bytes` the entries that were not read for longest go: at a process's first write, and whenever it
///   has written a sixteenth of the limit since, which is what each process may have put beyond it.
/// - A file is removed only where its name and its beginning are those of a file of ours.
/// - Nothing but from_environment() throws: where the folder cannot be used there is nothing cached, and problem() and
///   write() say why.
class KernelCache {
 public:
  /// Keeps entries in `directory`. No folder (an empty path) or no bytes: nothing is kept.
  KernelCache(std::filesystem::path directory, std::uint64_t limit_bytes);
  /// The cache that the environment asks for: in the folder kfusion of $KFUSION_CACHE_DIR, else of $XDG_CACHE_HOME,
  /// else of ~/.cache, with $KFUSION_CACHE_MB (256) times 1e6 bytes. Throws ValueError where a variable's value makes
  /// no sense.
  static KernelCache from_environment();

  /// The image kept under `key`, a digest.
  std::optional<std::string> read(const std::string& key) const;
  /// Says why nothing can be kept; empty where the image is, or where nothing is to be kept.
  std::string write(const std::string& key, std::string_view image) const;
  /// write() that reports a failure on stderr, once.
  void keep(const std::string& key, std::string_view image) const;

  struct Contents {
    std::uint64_t entries = 0, bytes = 0;
  };
  Contents contents() const;
  Contents clear() const;  ///< removes all entries and says what they were
  /// Why nothing can be kept; empty where it can. Makes the folder.
  std::string problem() const;

  const std::filesystem::path& directory() const { return directory_; }
  std::uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  std::filesystem::path directory_;
  std::uint64_t limit_bytes_;
};

}  // namespace kfusion::cache
