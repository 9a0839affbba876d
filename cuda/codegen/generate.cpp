#include "codegen/generate.hpp"

#include <algorithm>
#include <cctype>

#include "codegen/expression.hpp"
#include "codegen/printer.hpp"
#include "codegen/skeleton.hpp"

namespace kfusion::codegen {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// "add_4_layernorm_3" as "add_layernorm": the numbers only tell the values of one graph apart.
std::string without_numbers(const std::string& name) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < name.size(); i = end) {
    end = std::min(name.find('_', i + 1), name.size());
    const bool is_number = name[i] == '_' && end > i + 1 &&
                           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                       name.begin() + static_cast<std::ptrdiff_t>(end), is_digit);
    if (!is_number) text.append(name, i, end - i);
  }
  return text;
}

/// The call of the skeleton's function.
std::string call_of(const Skeleton& s, const Configuration& c, bool geometry) {
  return std::string(s.name) + "<Fused, " + c.call() + ">(Fused{p}" + (geometry ? ", p.geometry" : "") +
         (s.workspace ? ", p.workspace" : "") + (s.standing ? ", p.standing" : "") + ")";
}

}  // namespace

Kernel without_names(Kernel kernel) {
  kernel.name = without_numbers(kernel.name);
  for (Operand& o : kernel.loads) o.label.clear();
  for (Operand& o : kernel.iotas) o.label.clear();
  for (Table& t : kernel.tables) t.from.label.clear();
  for (Step& s : kernel.steps) s.label.clear();
  for (Store& s : kernel.stores) s.to.label.clear();
  return kernel;
}

namespace {

/// Each thread loads some rows' elements of its columns, then stores there. Where an operand lies across, threads load
/// for each other.
bool is_one_sweep_of_columns(const Kernel& k, const Arrangement& a, const Skeleton& skeleton) {
  const bool is_columns = skeleton.header == std::string_view("device/columns.cuh");
  return is_columns && k.kind == Pattern::kColumns && k.paired.sweeps == 1 && !a.across && !a.crossed();
}

}  // namespace

CudaKernel::CudaKernel(const Kernel& kernel, const Target& target, bool aligned)
    : entry_(identifier("kf_", kernel.name)), constants_(kernel.constants) {
  const Kernel k = with_axes(kernel);
  Arrangement a = arrange(k, aligned);
  if (auto planes = in_planes(k, a); planes && has_planes(Problem(k, *planes, target))) a = *std::move(planes);
  if (k.parts() > 0)
    if (Arrangement wide = arrange(k, aligned, false); has_summed_rings(Problem(k, wide, target))) a = std::move(wide);
  const Problem problem(k, a, target);
  const auto [skeleton, chosen] = choose(problem);
  reads_first_ = is_one_sweep_of_columns(k, a, skeleton);
  ParameterList parameters;
  Printer printer(k, a, chosen->traits, parameters);
  const Division d = chosen->launch(problem, static_cast<std::int64_t>(printer.partial_bytes()));
  if (const auto& g = d.geometry)
    parameters.numbers("Geometry", "geometry", {g->rows, g->warps, g->splits, g->box, g->ahead});
  if (skeleton.workspace) parameters.memory("workspace", Cell::Kind::kWorkspace);
  if (skeleton.standing) parameters.memory("standing", Cell::Kind::kStanding);
  launch_ = d.launch;
  cells_ = parameters.cells();
  source_ = "// " + kernel.name + "\n#include \"" + skeleton.header +
            "\"\n\nnamespace kfusion::device::scalar {\n\nstruct Parameters {\n" + parameters.members() + "};\n\n" +
            printer.print() + "\nextern \"C\" __global__ void __launch_bounds__(" +
            listed(chosen->threads, chosen->least_blocks) + ")\n    " + entry_ +
            "(const __grid_constant__ Parameters p) {\n  " + call_of(skeleton, *chosen, d.geometry.has_value()) +
            ";\n}\n\n}  // namespace kfusion::device::scalar\n";
}

}  // namespace kfusion::codegen
