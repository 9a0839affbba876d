#include "codegen/expression.hpp"

#include <algorithm>
#include <cctype>

#include "codegen/parameters.hpp"
#include "kfusion/ops/signature.hpp"

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

std::string formula(const Step& s, const std::function<std::string(int)>& value) {
  const auto argument = [&](std::size_t i) { return i < s.arguments.size() ? value(s.arguments[i]) : ""; };
  if (s.kind == StepKind::kCast) {
    if (is_half(s.dtype)) return "rounded<" + storage_type(s.dtype) + ">(" + argument(0) + ")";
    return "convert<" + compute_type(s.dtype) + ">(" + argument(0) + ")";
  }
  if (s.is.quick) return "quick_" + std::string(name(s.op)) + "(" + argument(0) + ")";
  const Meaning meanings[] = {{"x", argument(0)}, {"y", argument(1)}, {"z", argument(2)}, {"T", compute_type(s.from)}};
  const std::string text = with(info(s.op).expression, meanings);
  return s.dtype == DType::kBool && s.from == DType::kBool ? "(" + text + ") != 0" : text;
}

std::string accumulator(const Step& s) {
  const SignatureInfo& takes = signature_of(s.op);
  if (takes.gives_bool()) return "u8";
  return takes.accumulates() && !is_float(s.from) ? "i64" : compute_type(s.from);
}

std::string combined(const Step& s, const std::string& a, const std::string& b) {
  const Meaning meanings[] = {{"a", a}, {"b", b}, {"A", accumulator(s)}};
  return with(info(s.op).combine, meanings);
}

std::string with_element(const Step& s, const std::string& a, const std::string& x) {
  const Meaning lifted[] = {{"x", x}, {"A", accumulator(s)}, {"T", compute_type(s.from)}};
  return combined(s, a, with(info(s.op).lift, lifted));
}

std::string identity(const Step& s) {
  const std::string a = accumulator(s);
  const Meaning meanings[] = {{"A", a}};
  if (!info(s.op).needs_elements()) return with(info(s.op).identity, meanings);
  return "unchosen<" + a + ">(" + combined(s, "lowest<" + a + ">()", "highest<" + a + ">()") + ")";
}

std::string finished(const Step& s, const std::string& a, const std::string& n) {
  const Meaning meanings[] = {{"a", a}, {"n", n}, {"A", accumulator(s)}};
  return with(info(s.op).finish, meanings);
}

std::string identifier(std::string prefix, std::string_view name) {
  for (const char c : name) prefix += in_name(c) ? c : '_';
  return prefix;
}

}  // namespace kfusion::codegen
