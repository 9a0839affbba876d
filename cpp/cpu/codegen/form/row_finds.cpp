#include "cpu/codegen/form/row_finds.hpp"

#include <algorithm>

#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/math/ops.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::cpu::ir {
namespace {

bool has_whole_rows(const Form& form) {
  return form.kernel.kind != Pattern::kPointwise && !form.across && !form.in_pieces && form.run_axes() == 0;
}

/// 0, 1, 2, ... along the row.
bool counts_elements(const Form& form, int s) {
  if (form.kernel.step(s).kind != StepKind::kIota) return false;
  const Operand& o = form.kernel.iotas[static_cast<std::size_t>(form.kernel.step(s).index)];
  return o.offset == 0 && o.reduced == Extents{1} && std::ranges::all_of(o.kept, [](auto n) { return n == 0; });
}

bool is_zero(const Form& form, int s) {
  const Step& of = form.kernel.step(s);
  if (of.kind != StepKind::kConstant) return false;
  const Constant& c = form.kernel.constants[static_cast<std::size_t>(of.index)];
  return c.parameter < 0 && (is_integer(c.dtype) ? c.integer == 0 : c.value == 0);
}

}  // namespace

std::int64_t elements_of_chunk(const Form& form) { return std::int64_t{form.lanes} * form.registers * kFloatSums; }

std::optional<Search> search_of_chunk(const Form& form, int step) {
  const auto found = std::ranges::find(form.kernel.searches, step, &Search::reduction);
  if (found == form.kernel.searches.end() || !has_whole_rows(form)) return std::nullopt;
  const Step& extreme = form.kernel.step(found->number);
  const bool is_extreme = extreme.kind == StepKind::kReduce && (extreme.op == Op::max || extreme.op == Op::min) &&
                          compute_dtype(extreme.from) != DType::kBool && extreme.arguments[0] == found->x;
  return is_extreme && counts_elements(form, found->place) ? std::optional(*found) : std::nullopt;
}

bool is_searched_for(const Form& form, int step) {
  if (form.cols() <= kSearchedChunks * elements_of_chunk(form)) return false;
  return std::ranges::any_of(form.kernel.searches, [&](const Search& s) {
    return s.number == step && search_of_chunk(form, s.reduction).has_value();
  });
}

std::optional<Pick> pick_of_one(const Form& form, int step) {
  const auto found = std::ranges::find(form.kernel.picks, step, &Pick::reduction);
  if (found == form.kernel.picks.end() || !has_whole_rows(form)) return std::nullopt;
  const Step& equal = form.kernel.step(found->equal);
  const int place = equal.arguments[static_cast<std::size_t>(equal.is.place)];
  const bool is_known = !form.varies(equal.arguments[static_cast<std::size_t>(1 - equal.is.place)]);
  return is_known && counts_elements(form, place) && is_zero(form, found->otherwise) ? std::optional(*found)
                                                                                     : std::nullopt;
}

}  // namespace kfusion::cpu::ir
