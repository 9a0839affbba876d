// What the text of a form depends on, without writing it: kernels of other sizes often have one text.
#pragma once
#include <string>

#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// Forms of equal keys have equal texts, in one process: other versions of kfusion write others.
std::string key_of(const Form& form);

}  // namespace kfusion::cpu::ir
