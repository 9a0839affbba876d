#include "codegen/each_kernel.hpp"

#include <cstring>
#include <limits>

#include "codegen/capacity.hpp"
#include "codegen/expression.hpp"
#include "codegen/printer.hpp"
#include "kfusion/error.hpp"

namespace kfusion::codegen {
namespace {

/// Registers for what is loaded, addresses and numbers of some seven operands, at twice the threads that memory needs.
struct EachPolicy {
  static constexpr int kThreads = 256, kLeastBlocks = 4, kLeastLargeBlocks = 2;
  static constexpr std::size_t kFewLoads = 4;  ///< more need more registers: 64 were too few for AMSGrad's five
  static constexpr int kBytesInFlight = 32, kMostVectors = 4;
  static constexpr int kMostPart = 1 << 14;  ///< elements: a block's search for its set is a small part of its time
  static constexpr int kPartsAtOnce = 8;     ///< of a multiprocessor: small sets are cut so that all have some
};

/// The part's own parameters, which the struct of the loops reads.
std::string own_parameters(const ParameterList& parameters, const std::vector<int>& loads,
                           const std::vector<int>& stores) {
  std::string text;
  for (const ParameterList::Pointer& p : parameters.pointers()) {
    const int array = (p.stores ? stores : loads)[static_cast<std::size_t>(p.index)];
    text += "  p." + p.name + " = part.array<" + p.type + ">(" + std::to_string(array) + ");\n";
  }
  return text + "  p.inner.size = part.elements;\n";
}

}  // namespace

EachKernel::EachKernel(const Kernel& kernel, const std::vector<int>& loads, const std::vector<int>& stores, int arrays,
                       const Target& target, bool aligned)
    : entry_(identifier("kf_each_", kernel.name)),
      constants_(kernel.constants),
      arrays_(arrays),
      multiprocessors_(target.multiprocessors) {
  using Policy = EachPolicy;
  const Arrangement a = arrange(kernel, aligned);
  Traits traits;
  traits.held = element_loads(kernel, a);
  traits.through_l1 = true;
  ParameterList parameters;
  Printer printer(kernel, a, traits, parameters);
  const int vectors = vectors_in_flight(kernel, a, Policy::kBytesInFlight, Policy::kMostVectors);
  tile_ = Policy::kThreads * a.width * vectors;
  cells_ = parameters.cells();
  const bool large = in_doubles(kernel) || kernel.loads.size() > Policy::kFewLoads;
  const int blocks = large ? Policy::kLeastLargeBlocks : Policy::kLeastBlocks;
  source_ = "// each " + kernel.name +
            "\n#include \"device/each.cuh\"\n\nnamespace kfusion::device::scalar {\n\nstruct Parameters {\n" +
            parameters.members() + "};\n\n" + printer.print() +
            "\nstruct Each {\n  Parameters own;\n  Sets sets;\n};\n\nextern \"C\" __global__ void __launch_bounds__(" +
            listed(Policy::kThreads, blocks) + ")\n    " + entry_ + "(const __grid_constant__ Each e) {\n" +
            "  const Part part = part_of_block<" + std::to_string(arrays) + ">(e.sets);\n  Parameters p = e.own;\n" +
            own_parameters(parameters, loads, stores) + "  each<Fused, " + std::to_string(vectors) +
            ">(Fused{p});\n}\n\n}  // namespace kfusion::device::scalar\n";
}

EachKernel::Table EachKernel::table(std::span<const ArraySet> sets) const {
  std::int64_t all = 0;
  for (const ArraySet& s : sets) all += s.elements;
  const std::int64_t wanted = all / (std::int64_t{multiprocessors_} * EachPolicy::kPartsAtOnce);
  Table t;
  t.part = static_cast<int>(clamp(round_up(wanted, tile_), tile_, EachPolicy::kMostPart));
  t.sets = static_cast<int>(sets.size());
  const std::size_t firsts = (sets.size() + 1) / 2 * 8, pitch = static_cast<std::size_t>(arrays_ + 1) * 8;
  t.bytes.resize(firsts + sets.size() * pitch);
  std::byte* set = t.bytes.data() + firsts;
  for (std::size_t i = 0; i < sets.size(); ++i, set += pitch) {
    const auto first = static_cast<std::int32_t>(t.parts);
    std::memcpy(t.bytes.data() + i * sizeof first, &first, sizeof first);
    std::memcpy(set, sets[i].arrays, pitch - 8);
    std::memcpy(set + pitch - 8, &sets[i].elements, 8);
    t.parts += divide_up(sets[i].elements, std::int64_t{t.part});
    if (t.parts > std::numeric_limits<std::int32_t>::max())
      throw ValueError("kfusion: the arrays have too many elements for one kernel");
  }
  return t;
}

Launch EachKernel::launch(const Table& table) const {
  Launch l;
  l.grid[0] = static_cast<unsigned>(table.parts);
  l.block[0] = EachPolicy::kThreads;
  return l;
}

void EachKernel::write_parameters(const Table& table, const std::byte* at, const double* values, std::byte* to) const {
  const std::vector<std::byte*> nowhere(cells_.size());  // each block knows where
  write_cells(cells_, constants_, nowhere.data(), nowhere.data(), values, {}, to);
  to += cells_.size() * sizeof(std::int64_t);
  std::memcpy(to, &at, sizeof at);
  const std::int32_t numbers[] = {table.sets, table.part};
  std::memcpy(to + sizeof at, numbers, sizeof numbers);
}

}  // namespace kfusion::codegen
