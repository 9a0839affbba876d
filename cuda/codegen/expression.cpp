#include "codegen/expression.hpp"

#include <algorithm>
#include <cctype>

namespace kfusion::codegen {
namespace {

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::string with(std::string_view expression, std::span<const Meaning> meanings) {
  std::string text;
  while (!expression.empty()) {
    const auto end = in_name(expression[0]) ? std::ranges::find_if_not(expression, in_name) : expression.begin() + 1;
    const std::string_view token = expression.substr(0, static_cast<std::size_t>(end - expression.begin()));
    const auto found = std::ranges::find(meanings, token, &Meaning::first);
    text += found == meanings.end() ? token : std::string_view(found->second);
    expression.remove_prefix(token.size());
  }
  return text;
}

std::string identifier(std::string prefix, std::string_view name) {
  for (const char c : name) prefix += in_name(c) ? c : '_';
  return prefix;
}

}  // namespace kfusion::codegen
