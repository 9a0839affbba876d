// A compiler's log for people: with the lines of source that it is about.
#pragma once
#include <string>
#include <string_view>

namespace kfusion::compiler {

/// `log`, then the lines of `source` around those that the log names as "<file>(<line>)", numbered; all of it where it
/// names none.
std::string with_source(std::string_view log, std::string_view file, std::string_view source);

}  // namespace kfusion::compiler
