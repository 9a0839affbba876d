// All backends.
#pragma once
#include "runtime/backend.hpp"

namespace kfusion {

/// Those of backends.def, and those that were added.
Executors available_executors();

/// Those and anyone().
Executors possible_executors();

/// The one of that name; nullptr where there is none.
const Executor* executor_named(std::string_view name);

/// Puts a backend before all others, for plans that are made from now on. It is never destroyed.
void add_backend(const Backend& backend);
void remove_backend(const Backend& backend);

}  // namespace kfusion
