#include "kfusion/plan/pattern.hpp"

#include "kfusion/enumerators.hpp"

namespace kfusion {

static_assert(kPatterns == kEnumerators<Pattern>);
std::string_view name(Pattern p) { return enumerator_name(p); }

}  // namespace kfusion
