// The process's environment.
#pragma once
#include <cstdlib>
#include <string>

namespace kfusion::cache {

/// Empty where it is not set.
inline std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

}  // namespace kfusion::cache
