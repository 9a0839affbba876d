// Lists of C++ as lists of Python, and back.
#pragma once
#include <pybind11/stl.h>

#include "kfusion/few.hpp"

namespace pybind11::detail {

template <class T, std::size_t kFew>
struct type_caster<kfusion::Few<T, kFew>> : list_caster<kfusion::Few<T, kFew>, T> {};

}  // namespace pybind11::detail
