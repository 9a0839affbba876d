#include "cpu/codegen/texts.hpp"

#include <algorithm>

#include "cpu/codegen/ir.hpp"
#include "cpu/codegen/policy.hpp"

namespace kfusion::cpu::ir {

std::string kernel_text(const Form& form) {
  Text text(form.target, form.lanes);
  const Writing writing(text);
  form.kernel.kind == Pattern::kPointwise ? write_map(form) : form.across ? write_columns(form) : write_rows(form);
  return "define void @kernel(ptr %call, i64 %row, i64 %last_row, i64 %begin, i64 %end) #0 {\n" + text.body() +
         "  ret void\n}\n" + text.declarations() + "attributes #0 = { " + text.attributes() + " }\n!0 = !{i32 1}\n";
}

namespace {

std::string why_not_map(const Kernel& k) {
  if (k.kept.size() > 1 && k.kept.back() < kShortestRow) return "short rows of an elementwise kernel";
  const auto is_still = [](const Store& s) { return !s.to.kept.empty() && s.to.kept.back() == 0; };
  return std::ranges::any_of(k.stores, is_still) ? "a store without an axis" : "";
}

std::string why_not_rows(const Kernel& k) {
  if (k.parts() > 0) return "sums of parts of the rows";
  if (k.cols() < kShortestReducedRow) return "short rows";
  if (k.cols() > kLongestRow) return "long rows";
  if (k.rows() < kFewRows && k.cols() > kPiece) return "few rows that threads share";
  return "";
}

}  // namespace

std::string why_not_generated(const Kernel& k) {
  if (operations_of(k) > kMostOperations) return "long chain";
  switch (k.kind) {
    case Pattern::kPointwise:
      return why_not_map(k);
    case Pattern::kRows:
    case Pattern::kFullReduction:
      return why_not_rows(k);
    case Pattern::kColumns:
      return "";
    default:
      return "pattern " + std::string(name(k.kind));
  }
}

}  // namespace kfusion::cpu::ir
