#include "codegen/expression.hpp"

#include <algorithm>
#include <cctype>

namespace kfusion::codegen {
namespace {

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Where the first comma outside of parentheses is, or the end.
std::size_t comma(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (text[i] == ',' && depth == 0) return i;
  }
  return text.size();
}

std::string_view cut_part(std::string_view& rest) {
  const std::size_t end = comma(rest);
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 2, rest.size()));  // ", "
  return part;
}

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

ReductionText reduction_text(const OpInfo& row) {
  std::string_view rest = row.expression;
  ReductionText text;
  text.lift = cut_part(rest);
  text.combine = cut_part(rest);
  text.finish = cut_part(rest);
  return text;
}

}  // namespace kfusion::codegen
