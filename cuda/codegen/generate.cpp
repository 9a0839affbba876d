#include "codegen/generate.hpp"

#include <cctype>

#include "codegen/choice.hpp"
#include "codegen/division.hpp"
#include "codegen/printer.hpp"

namespace kfusion::codegen {
namespace {

std::string identifier(const std::string& name) {
  std::string text = "kf_";
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text;
}

std::string header_of(Skeleton s) {
  switch (s) {
    case Skeleton::kPointwise:
      return "device/pointwise.cuh";
    case Skeleton::kPackedRows:
      return "device/packed.cuh";
    case Skeleton::kSpanRows:
      return "device/spans.cuh";
    case Skeleton::kShortRows:
    case Skeleton::kTeamRows:
    case Skeleton::kLongRows:
    case Skeleton::kSplitRows:
      return "device/rows.cuh";
    case Skeleton::kSpreadRows:
      return "device/spread.cuh";
    case Skeleton::kRingRows:
      return "device/ring.cuh";
    case Skeleton::kColumns:
      return "device/columns.cuh";
    case Skeleton::kTiles:
      return "device/tiles.cuh";
  }
  return {};
}

bool has_workspace(Skeleton s) { return s == Skeleton::kSplitRows || s == Skeleton::kColumns; }
bool has_standing(Skeleton s) {
  return has_workspace(s) || s == Skeleton::kRingRows || s == Skeleton::kSpreadRows || s == Skeleton::kTiles;
}

/// The call of the skeleton.
std::string call_of(const Choice& c) {
  const std::string vectors = std::to_string(c.vectors);
  switch (c.skeleton) {
    case Skeleton::kPointwise:
      return "pointwise<Fused, " + vectors + ">(Fused{p})";
    case Skeleton::kSpanRows:
      return "span_rows<Fused, " + std::to_string(c.lanes) + ", " + vectors + ", " + std::to_string(c.rows) +
             ">(Fused{p}, p.geometry)";
    case Skeleton::kPackedRows:
      return "packed_rows<Fused, " + vectors + ">(Fused{p}, p.geometry)";
    case Skeleton::kShortRows:
      return "short_rows<Fused, " + std::to_string(c.lanes) + ", " + vectors + ">(Fused{p}, p.geometry)";
    case Skeleton::kTeamRows:
      return "team_rows<Fused, " + vectors + (c.ahead ? ", true" : ", false") + ">(Fused{p}, p.geometry)";
    case Skeleton::kRingRows:
      return "ring_rows<Fused, " + std::to_string(c.ring.segments) + ", " + std::to_string(kSegmentVectors) +
             (c.spread ? ", true, " : ", false, ") + std::to_string(c.kept) + ">(Fused{p}, p.geometry, p.standing)";
    case Skeleton::kSpreadRows:
      return "spread_rows<Fused, " + vectors + (c.staged ? ", true" : ", false") +
             ">(Fused{p}, p.geometry, p.standing)";
    case Skeleton::kLongRows:
      return "long_rows<Fused, " + vectors + ">(Fused{p}, p.geometry)";
    case Skeleton::kSplitRows:
      return "split_rows<Fused, " + vectors + ">(Fused{p}, p.geometry, p.workspace, p.standing)";
    case Skeleton::kTiles:
      return "tiles<Fused, " + std::to_string(c.lanes) + ", TileShape<" + std::to_string(c.tile.segments) + ", " +
             std::to_string(c.tile.rows) + ", " + std::to_string(c.tile.held) + ", " + std::to_string(c.tile.stages) +
             ">>(Fused{p}, p.geometry, p.standing)";
    case Skeleton::kColumns:
      return "columns<Fused, " + vectors + ">(Fused{p}, p.geometry, p.workspace, p.standing)";
  }
  return {};
}

}  // namespace

CudaKernel::CudaKernel(const Kernel& kernel, const Target& target, bool aligned)
    : entry_(identifier(kernel.name)), constants_(kernel.constants) {
  const Kernel k = with_axes(kernel);
  const Arrangement a = arrange(k, aligned);
  const Choice c = choose(k, a, target);
  ParameterList parameters;
  Printer printer(k, a, c, parameters);
  const Division d = divide(k, a, c, target, printer.partial_bytes());
  if (!d.geometry.empty()) parameters.numbers("Geometry", "geometry", d.geometry);
  if (has_workspace(c.skeleton)) parameters.memory("workspace", Cell::Kind::kWorkspace);
  if (has_standing(c.skeleton)) parameters.memory("standing", Cell::Kind::kStanding);
  launch_ = d.launch;
  cells_ = parameters.cells();
  source_ = "// " + kernel.name + "\n#include \"" + header_of(c.skeleton) +
            "\"\n\nnamespace kfusion::device::scalar {\n\nstruct Parameters {\n" + parameters.members() + "};\n\n" +
            printer.print() + "\nextern \"C\" __global__ void __launch_bounds__(" + std::to_string(c.threads) + ", " +
            std::to_string(c.least_blocks) + ")\n    " + entry_ + "(const __grid_constant__ Parameters p) {\n  " +
            call_of(c) + ";\n}\n\n}  // namespace kfusion::device::scalar\n";
}

}  // namespace kfusion::codegen
