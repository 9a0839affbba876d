// Compiled kernels on disk: a folder of files that any number of processes read and write at once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kfusion::compiler {

/// A file per entry, `<key>.cubin`: one line of text (what it is, its key, its length and digest), then the image.
/// - Files are written beside their place and renamed into it: readers see all of an entry or nothing.
/// - An entry that is damaged, cut short or somebody else's counts as absent; the next write replaces it.
/// - Beyond `limit_bytes` the entries that were not read for longest go.
/// - Nothing here throws: where the folder cannot be made, read or written, there is nothing cached, and problem() says
///   so.
class CubinCache {
 public:
  /// No folder (an empty path) or no bytes: nothing is kept.
  CubinCache(std::filesystem::path directory, std::uint64_t limit_bytes);
  /// As the user wants it now: in $KFUSION_CACHE_DIR, else $XDG_CACHE_HOME/kfusion, else ~/.cache/kfusion, and of
  /// $KFUSION_CACHE_MB (256) times 1e6 bytes.
  static CubinCache from_environment();

  /// The image kept under `key`, a digest.
  std::optional<std::string> read(const std::string& key) const;
  void write(const std::string& key, std::string_view image) const;

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
  void trim() const;

  std::filesystem::path directory_;
  std::uint64_t limit_bytes_;
};

}  // namespace kfusion::compiler
