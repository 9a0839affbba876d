#include "codegen/generate.hpp"

namespace kfusion::codegen {

std::span<const std::pair<std::string_view, std::string_view>> embedded_headers() {
  static constexpr std::pair<std::string_view, std::string_view> kHeaders[] = {
#include "embedded_headers.inc"
  };
  return kHeaders;
}

}  // namespace kfusion::codegen
