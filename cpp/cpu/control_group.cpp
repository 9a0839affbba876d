#include "cpu/control_group.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "kfusion/files.hpp"

namespace kfusion::cpu {
namespace {

/// One of the process's groups: its path within the hierarchy that controls memory.
struct Group {
  bool is_version_2;
  std::string path;
};

/// Where a part of a hierarchy is mounted.
struct Mount {
  bool is_version_2;
  std::string root, point;  ///< the group that is seen at `point`
};

std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    all.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

bool has_memory(const std::string& list) { return ("," + list + ",").find(",memory,") != std::string::npos; }

/// Lines "number:controllers:path"; version 2 names no controllers.
std::vector<Group> groups(const std::string& root) {
  std::vector<Group> all;
  for (const std::string& line : parts(bytes_of(root + "/proc/self/cgroup"), '\n')) {
    const std::size_t first = line.find(':'), second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() || has_memory(controllers)) all.push_back({controllers.empty(), line.substr(second + 1)});
  }
  return all;
}

/// Lines "number parent device root point options [more...] - type source options".
std::vector<Mount> mounts(const std::string& root) {
  std::vector<Mount> all;
  for (const std::string& line : parts(bytes_of(root + "/proc/self/mountinfo"), '\n')) {
    const std::vector<std::string> words = parts(line, ' ');
    const auto dash = std::ranges::find(words, "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool is_version_2 = dash[1] == "cgroup2";
    if (is_version_2 || (dash[1] == "cgroup" && has_memory(dash[3]))) all.push_back({is_version_2, words[3], words[4]});
  }
  return all;
}

/// The group's path below the mount point. A group that is not seen there has that of the mount's own, which holds
/// it or is as near to it as this process can look.
std::string path_below(const Mount& mount, const Group& group) {
  const std::string prefix = mount.root == "/" ? "" : mount.root;
  const bool is_seen =
      group.path.starts_with(prefix) && (group.path.size() == prefix.size() || group.path[prefix.size()] == '/');
  if (!is_seen || group.path.find("/..") != std::string::npos) return "";
  const std::string path = group.path.substr(prefix.size());
  return path == "/" ? "" : path;
}

void lower(std::optional<std::size_t>& least, const std::string& file) {
  const std::string text = bytes_of(file);
  std::size_t limit = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (read.ec != std::errc()) return;  // no such file, or "max"
  least = least ? std::min(*least, limit) : limit;
}

}  // namespace

std::optional<std::size_t> control_group_memory(const std::string& root) {
  std::optional<std::size_t> least;
  const std::vector<Mount> all = mounts(root);
  for (const Group& group : groups(root)) {
    for (const Mount& mount : all) {
      if (mount.is_version_2 != group.is_version_2) continue;
      // A group's limit holds for all below it.
      for (std::string path = path_below(mount, group);; path.resize(path.rfind('/'))) {
        const std::string folder = root + mount.point + path + "/";
        if (mount.is_version_2) {
          lower(least, folder + "memory.max");
          lower(least, folder + "memory.high");  // beyond which the group is slowed down
        } else {
          lower(least, folder + "memory.limit_in_bytes");
        }
        if (path.empty()) break;
      }
    }
  }
  return least;
}

}  // namespace kfusion::cpu
