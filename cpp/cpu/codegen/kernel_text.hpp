// A kernel as a text in LLVM's language.
#pragma once
#include <string>
#include <vector>

#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// The functions that the text of the kernel defines, in the order in which they are run.
std::vector<std::string> functions_of(const Form& form);
std::string kernel_text(const Form& form);

}  // namespace kfusion::cpu::ir
