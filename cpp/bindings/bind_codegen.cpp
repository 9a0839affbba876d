// Generated CUDA C++: text, launch and parameters, which need no GPU.
#include <optional>

#include "backends/backends.hpp"
#include "bindings/bindings.hpp"
#include "codegen/attention/attention_kernel.hpp"
#include "codegen/contractions/contraction_kernel.hpp"
#include "codegen/each_kernel.hpp"
#include "codegen/generate.hpp"
#include "kfusion/error.hpp"
#include "kfusion/graph/builder.hpp"
#include "kfusion/graph/flat.hpp"
#include "kfusion/lower/layouts.hpp"
#include "python/records/device_dict.hpp"
#include "python/records/plan_options.hpp"
#include "python/stl.hpp"
#include "runtime/each.hpp"

namespace py = pybind11;

namespace kfusion {
namespace bind_codegen_detail {

constexpr const char* kKernelsDoc =
    R"(cuda_kernels(graph, device, fuse=True, aligned=True, clusters=None, multiprocessors=None, names=True)
--

The kernels of a graph as CUDA C++, in the order in which they run. Needs no GPU.

Args:
    graph: a Graph.
    device: dict of a Device's fields.
    fuse: False for one kernel per stage.
    aligned: whether all arrays begin at multiples of 16 bytes.
    clusters: whether the device has clusters of blocks; None for what its compute capability says.
    multiprocessors: how many the device has; None for what it says.
    names: whether the text has the names of values; what is compiled has none, so that equal kernels are one text.

Returns:
    A list of CudaKernel, for products with what follows them of ContractionKernel, for attention of AttentionKernel; None for what the array library
    computes.
)";

constexpr const char* kHeadersDoc = R"(cuda_headers()
--

The device headers that generated sources include: a dict of name to text.
)";

constexpr const char* kParametersDoc = R"(parameters(self, loads, stores, values=(), workspace=0, standing=0)
--

The bytes of the kernel's one parameter.

Args:
    loads: addresses of element 0 of what it reads, in the order of lower()'s "loads" and "tables".
    stores: of what it writes.
    values: of float arguments that the graph reads as constants.
    workspace: address of launch["workspace_bytes"] bytes.
    standing: address of launch["standing_bytes"] bytes, which are zero, and zero again when the kernel has run.
)";

/// What launches depend on, as far as a Device says it: of one without a compute capability, an H200's.
codegen::Target target_of(const Device& device) {
  codegen::Target target;
  if (device.compute_capability == 0) return target;
  target.compute_major = device.compute_capability / 10;
  target.compute_minor = device.compute_capability % 10;
  target.multiprocessors = device.units;
  target.shared_bytes = static_cast<int>(device.tile_bytes);
  target.l2_bytes = device.cache_bytes;
  target.clusters = target.compute_major >= 9;
  return target;
}

py::list kernels(const GraphBuilder& builder, const py::dict& device, bool fuse, bool aligned,
                 std::optional<bool> clusters, std::optional<int> multiprocessors, bool names) {
  const Device on = read_device(device);
  const Plan plan = with_layouts(make_plan(builder.graph(), on, options_to_run(fuse)), on);
  codegen::Target target = target_of(on);
  target.clusters = clusters.value_or(target.clusters);
  target.multiprocessors = multiprocessors.value_or(target.multiprocessors);
  const Lowering lowering(plan);
  py::list result;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const Group& group = plan.groups[i];
    if (is_loops(group.pattern)) {
      Kernel kernel = lowering.kernel(static_cast<int>(i));
      result.append(codegen::CudaKernel(names ? kernel : codegen::without_names(std::move(kernel)), target, aligned));
    } else if (group.executor && group.executor == executor_named("tensor_cores")) {
      std::vector<Contraction> c = lowering.contractions(static_cast<int>(i));
      result.append(codegen::ContractionKernel(names ? c : codegen::without_names(std::move(c)), target, aligned));
    } else if (group.executor && group.executor == executor_named("tensor_core_attention")) {
      Attention a = lowering.attention(static_cast<int>(i));
      result.append(codegen::AttentionKernel(names ? a : codegen::without_names(std::move(a)), target, aligned));
    } else {
      result.append(py::none());
    }
  }
  return result;
}

py::dict launch_of(const codegen::Launch& l) {
  using py::literals::operator""_a;
  return py::dict("grid"_a = py::make_tuple(l.grid[0], l.grid[1], l.grid[2]),
                  "block"_a = py::make_tuple(l.block[0], l.block[1], l.block[2]), "cluster"_a = l.cluster,
                  "shared_bytes"_a = l.shared_bytes, "resident"_a = l.resident, "cooperative"_a = l.cooperative,
                  "workspace_bytes"_a = l.workspace_bytes, "standing_bytes"_a = l.standing_bytes);
}

template <class Pointer>
std::vector<Pointer> pointers(const std::vector<std::uintptr_t>& addresses) {
  std::vector<Pointer> result;
  for (const std::uintptr_t a : addresses) result.push_back(reinterpret_cast<Pointer>(a));
  return result;
}

py::bytes parameters_of(const codegen::CudaKernel& k, const std::vector<std::uintptr_t>& loads,
                        const std::vector<std::uintptr_t>& stores, const std::vector<double>& values,
                        std::uintptr_t workspace, std::uintptr_t standing) {
  std::vector<std::byte> bytes(k.parameter_bytes());
  k.write_parameters(pointers<const std::byte*>(loads).data(), pointers<std::byte*>(stores).data(), values.data(),
                     {reinterpret_cast<std::byte*>(workspace), reinterpret_cast<std::byte*>(standing)}, bytes.data());
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// The bytes that the generated struct of an epilogue has: matrices are the driver's.
py::bytes epilogue_of(const codegen::ContractionKernel& k, const std::vector<std::uintptr_t>& loads,
                      const std::vector<std::uintptr_t>& stores, const std::vector<double>& values) {
  std::vector<std::byte> bytes(k.parameter_bytes());
  const std::byte* factors[codegen::kMostBeside] = {};
  k.write_parameters(
      {factors, factors, pointers<const std::byte*>(loads).data(), pointers<std::byte*>(stores).data()}, values.data(),
      {}, [](const codegen::BoxedMatrix&, const std::byte*, std::byte*) {}, bytes.data());
  const std::size_t from = k.epilogue_offset();
  return py::bytes(reinterpret_cast<const char*>(bytes.data() + from), bytes.size() - from);
}

/// The bytes that the struct of attention's scores has.
py::bytes scores_of(const codegen::AttentionKernel& k, const std::vector<std::uintptr_t>& loads,
                    const std::vector<double>& values) {
  std::vector<std::byte> bytes(k.parameter_bytes());
  const std::vector<std::byte*> nothing(std::size_t{64});
  k.write_parameters(
      {nullptr, nullptr, nullptr, pointers<const std::byte*>(loads).data(), nothing.data(), nothing.data()},
      values.data(), {}, [](const codegen::BoxedMatrix&, const std::byte*, std::byte*) {}, bytes.data());
  const std::size_t from = k.scores_offset();
  return py::bytes(reinterpret_cast<const char*>(bytes.data() + from), bytes.size() - from);
}

py::dict headers() {
  py::dict d;
  for (const auto& [name, text] : codegen::embedded_headers()) d[py::str(name)] = py::str(text);
  return d;
}

/// The one kernel of a graph of arrays of one axis, whose outputs go to inputs.
codegen::EachKernel each_kernel(const GraphBuilder& builder, const py::dict& device, const std::vector<int>& targets,
                                bool aligned) {
  const auto flat = flattened(builder.graph(), kEachElements);
  if (!flat) throw ValueError("kfusion: the graph is not elementwise");
  const Plan plan = make_plan(*flat, read_device(device), options_to_run(true));
  const auto request = each_request(plan, {}, aligned, targets);
  if (!request) throw ValueError("kfusion: the graph is not one elementwise kernel");
  return codegen::EachKernel(codegen::without_names(request->kernel), request->loads, request->stores,
                             static_cast<int>(request->arrays), {}, aligned);
}

/// What a launch has: the grid, the table, and the bytes of the parameter but for the table's address, which `at` is.
py::tuple each_launch(const codegen::EachKernel& k, const std::vector<std::vector<std::uintptr_t>>& sets,
                      const std::vector<std::int64_t>& elements, const std::vector<double>& values) {
  std::vector<std::vector<std::byte*>> arrays;
  std::vector<codegen::ArraySet> all;
  for (const auto& set : sets) arrays.push_back(pointers<std::byte*>(set));
  for (std::size_t i = 0; i < arrays.size(); ++i) all.push_back({arrays[i].data(), elements.at(i)});
  auto* const table = new codegen::EachKernel::Table(k.table(all));  // the capsule's
  const py::capsule keep(table, [](void* p) { delete static_cast<codegen::EachKernel::Table*>(p); });
  std::vector<std::byte> bytes(k.parameter_bytes());
  k.write_parameters(*table, table->bytes.data(), values.data(), bytes.data());
  return py::make_tuple(table->parts, k.launch(*table).block[0],
                        py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()), keep);
}

/// What every kernel tells of itself.
template <class Kernel>
py::class_<Kernel> text_class(py::module_& m, const char* name, const char* doc) {
  py::class_<Kernel> made(m, name, doc);
  made.def_property_readonly("source", &Kernel::source, "Its complete text.")
      .def_property_readonly("entry", &Kernel::entry, "The name of its __global__ function.");
  return made;
}

/// Extents, strides in bytes and the offset in bytes of each matrix that the copy engine brings or takes away.
template <class Kernel>
py::list matrices_of(const Kernel& k) {
  py::list all;
  for (const codegen::BoxedMatrix& m : k.matrices()) {
    if (m.box[0] == 1) continue;  // the place of none
    py::tuple sizes(m.axes), strides(m.axes - 1);
    for (int i = 0; i < m.axes; ++i) sizes[i] = m.sizes[i];
    for (int i = 0; i + 1 < m.axes; ++i) strides[i] = m.strides_bytes[i];
    all.append(py::make_tuple(sizes, strides, m.offset_bytes));
  }
  return all;
}
constexpr const char* kMatricesDoc = "(extents, strides in bytes, offset in bytes) of what the copy engine moves.";

/// Binds a class of kernels whose launch depends on nothing that a call brings.
template <class Kernel>
py::class_<Kernel> kernel_class(py::module_& m, const char* name, const char* doc) {
  py::class_<Kernel> made = text_class<Kernel>(m, name, doc);
  made.def_property_readonly(
      "launch", [](const Kernel& k) { return launch_of(k.launch()); }, "Its grid, block, cluster and memory.");
  return made;
}

}  // namespace bind_codegen_detail

void bind_codegen(py::module_& m) {
  using namespace bind_codegen_detail;
  kernel_class<codegen::CudaKernel>(m, "CudaKernel", "A kernel as CUDA C++.")
      .def_property_readonly("reads_first", &codegen::CudaKernel::reads_first,
                             "Of a kernel that reduces: whether results may lie where it reads the same elements.")
      .def("parameters", &parameters_of, py::arg("loads"), py::arg("stores"), py::arg("values") = std::vector<double>{},
           py::arg("workspace") = 0, py::arg("standing") = 0, kParametersDoc);
  text_class<codegen::EachKernel>(m, "EachKernel", "An elementwise kernel over many sets of arrays as CUDA C++.")
      .def("launch", &each_launch, py::arg("sets"), py::arg("elements"), py::arg("values") = std::vector<double>{},
           "launch(self, sets, elements, values=())\n--\n\nBlocks, threads, the parameter's bytes, and what keeps the "
           "table alive, which is on the host. sets: addresses of each; elements: of each; values: of numbers.\n");
  m.def("each_kernel", &each_kernel, py::arg("graph"), py::arg("device"), py::arg("targets"), py::arg("aligned") = true,
        "each_kernel(graph, device, targets, aligned=True)\n--\n\nThe kernel of an elementwise graph for many sets of "
        "arrays, as an H200 runs it. targets: for each output the input whose place it takes.\n");
  kernel_class<codegen::ContractionKernel>(m, "ContractionKernel",
                                           "A product and what follows it as CUDA C++ for tensor cores.")
      .def_property_readonly("matrices", &matrices_of<codegen::ContractionKernel>, kMatricesDoc)
      .def("epilogue", &epilogue_of, py::arg("loads"), py::arg("stores"), py::arg("values") = std::vector<double>{},
           "epilogue(self, loads, stores, values=())\n--\n\nThe bytes of the generated struct's parameters.");
  kernel_class<codegen::AttentionKernel>(m, "AttentionKernel", "Attention as CUDA C++ for tensor cores.")
      .def_property_readonly("matrices", &matrices_of<codegen::AttentionKernel>, kMatricesDoc)
      .def_property_readonly(
          "bounds",
          [](const codegen::AttentionKernel& k) {
            py::list bounds;
            for (const KeyBound& b : k.bounds()) bounds.append(py::make_tuple(b.upper, b.row, b.from));
            return bounds;
          },
          "Of the keys that query i sees: (True, a, c) for none behind a * i + c, (False, a, c) for none before it.")
      .def("scores", &scores_of, py::arg("loads"), py::arg("values") = std::vector<double>{},
           "scores(self, loads, values=())\n--\n\nThe bytes of the parameters of the generated struct Scores.");
  m.def("cuda_kernels", &kernels, py::arg("graph"), py::arg("device"), py::arg("fuse") = true,
        py::arg("aligned") = true, py::arg("clusters") = py::none(), py::arg("multiprocessors") = py::none(),
        py::arg("names") = true, kKernelsDoc);
  m.def("cuda_headers", &headers, kHeadersDoc);
}

}  // namespace kfusion
