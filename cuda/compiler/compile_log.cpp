#include "compiler/compile_log.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

namespace kfusion::compiler {
namespace {

constexpr int kAround = 3;  // lines shown before and after one that the log names

/// Line numbers, from 1, that the log gives for `file`.
std::set<int> named_lines(std::string_view log, std::string_view file) {
  const std::string mark = std::string(file) + "(";
  std::set<int> lines;
  for (std::size_t at = log.find(mark); at != std::string_view::npos; at = log.find(mark, at + 1)) {
    int line = 0;
    const char* const digits = log.data() + at + mark.size();
    if (std::from_chars(digits, log.data() + log.size(), line).ec == std::errc()) lines.insert(line);
  }
  return lines;
}

bool near(const std::set<int>& lines, int line) {
  const auto next = lines.lower_bound(line - kAround);
  return next != lines.end() && *next <= line + kAround;
}

}  // namespace

std::string with_source(std::string_view log, std::string_view file, std::string_view source) {
  const std::set<int> named = named_lines(log, file);
  std::string text(log.substr(0, log.find('\0')));
  bool shown = true;
  for (int i = 1; !source.empty(); ++i) {
    const std::size_t end = std::min(source.find('\n'), source.size());
    const bool show = named.empty() || near(named, i);
    if (show && !shown) text += "   ...\n";
    if (show)
      text += (named.count(i) ? "> " : "  ") + std::to_string(i) + " | " + std::string(source.substr(0, end)) + '\n';
    shown = show;
    source.remove_prefix(std::min(end + 1, source.size()));
  }
  return text;
}

}  // namespace kfusion::compiler
