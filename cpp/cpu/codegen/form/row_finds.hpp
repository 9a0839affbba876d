// Reductions of whole rows that need few of their elements: the place of an extreme, and an element of a known place.
#pragma once
#include <optional>

#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// That one set of accumulators takes where reductions go by chunks.
std::int64_t elements_of_chunk(const Form& form);

/// Where reduction `step` searches for an extreme that an earlier sweep takes: only the chunk that had it first is
/// searched.
std::optional<Search> search_of_chunk(const Form& form, int step);
/// Whether the chunk in which reduction `step` meets its extreme is wanted: of rows of more than a few.
bool is_searched_for(const Form& form, int step);

/// Where reduction `step` adds nothing but one element: that is computed alone.
std::optional<Pick> pick_of_one(const Form& form, int step);

}  // namespace kfusion::cpu::ir
