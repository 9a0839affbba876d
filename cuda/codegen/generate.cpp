#include "codegen/generate.hpp"

#include <cctype>

#include "codegen/printer.hpp"
#include "codegen/skeleton.hpp"

namespace kfusion::codegen {
namespace {

std::string identifier(const std::string& name) {
  std::string text = "kf_";
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text;
}

/// The call of the skeleton's function.
std::string call_of(const Skeleton& s, const Configuration& c, bool geometry) {
  return std::string(s.name) + "<Fused, " + c.call() + ">(Fused{p}" + (geometry ? ", p.geometry" : "") +
         (s.workspace ? ", p.workspace" : "") + (s.standing ? ", p.standing" : "") + ")";
}

}  // namespace

CudaKernel::CudaKernel(const Kernel& kernel, const Target& target, bool aligned)
    : entry_(identifier(kernel.name)), constants_(kernel.constants) {
  const Kernel k = with_axes(kernel);
  Arrangement a = arrange(k, aligned);
  if (auto planes = in_planes(k, a); planes && has_planes(Problem(k, *planes, target))) a = *std::move(planes);
  const Problem problem(k, a, target);
  const auto [skeleton, chosen] = choose(problem);
  ParameterList parameters;
  Printer printer(k, a, chosen->traits, parameters);
  const Division d = chosen->launch(problem, static_cast<std::int64_t>(printer.partial_bytes()));
  if (!d.geometry.empty()) parameters.numbers("Geometry", "geometry", d.geometry);
  if (skeleton.workspace) parameters.memory("workspace", Cell::Kind::kWorkspace);
  if (skeleton.standing) parameters.memory("standing", Cell::Kind::kStanding);
  launch_ = d.launch;
  cells_ = parameters.cells();
  source_ = "// " + kernel.name + "\n#include \"" + skeleton.header +
            "\"\n\nnamespace kfusion::device::scalar {\n\nstruct Parameters {\n" + parameters.members() + "};\n\n" +
            printer.print() + "\nextern \"C\" __global__ void __launch_bounds__(" +
            listed(chosen->threads, chosen->least_blocks) + ")\n    " + entry_ +
            "(const __grid_constant__ Parameters p) {\n  " + call_of(skeleton, *chosen, !d.geometry.empty()) +
            ";\n}\n\n}  // namespace kfusion::device::scalar\n";
}

}  // namespace kfusion::codegen
