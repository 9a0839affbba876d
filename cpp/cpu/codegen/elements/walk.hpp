// The loop over a row: whole registers, and masked what is left of it or comes before the first aligned store.
#pragma once
#include <functional>

#include "cpu/codegen/elements/elements.hpp"

namespace kfusion::cpu::ir {

/// The first element from which all dense stores of these are aligned; the end where there is none.
Number first_aligned(const std::vector<const Layout*>& stores, const Addresses& at, const Number& begin,
                     const Number& end);

using Take = std::function<void(const Window& window, bool past_caches)>;

/// The elements [begin, end) of a row. `aligned`: from there on stores go past the caches.
void walk(const Form& form, const Number& begin, const Number& end, const std::optional<Number>& aligned, Carry& carry,
          const Take& take);

}  // namespace kfusion::cpu::ir
