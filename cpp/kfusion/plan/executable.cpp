#include "kfusion/plan/executable.hpp"

namespace kfusion {
namespace {

std::string this_version_lacks(const char* what) { return std::string("this version has no kernel for ") + what; }

}  // namespace

bool is_loops(GroupKind kind) {
  switch (kind) {
    case GroupKind::kPointwise:
    case GroupKind::kCopy:
    case GroupKind::kRows:
    case GroupKind::kColumns:
    case GroupKind::kFullReduction:
      return true;
    default:
      return false;
  }
}

std::string missing_for(const Group& group) {
  const bool alone = group.nodes.size() == 1;
  switch (group.kind) {
    case GroupKind::kMatmul:
      return alone ? "" : this_version_lacks("a matrix product with an epilogue");
    case GroupKind::kConv2d:
      return alone ? "" : this_version_lacks("a convolution with an epilogue");
    case GroupKind::kGather:
      return alone ? "" : this_version_lacks("gathering with other operations");
    case GroupKind::kAttention:
      return this_version_lacks("attention");
    case GroupKind::kContractionReduction:
      return this_version_lacks("a contraction that is reduced where it is made");
    default:
      return "";
  }
}

}  // namespace kfusion
