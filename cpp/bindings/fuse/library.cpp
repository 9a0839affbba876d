#include "bindings/fuse/library.hpp"

#include "kfusion/reference/reference.hpp"

namespace kfusion::fuse {

namespace py = pybind11;

namespace {

namespace library_detail {

Node input_of(const View& v) {
  Node n;
  n.dtype = v.dtype;
  n.shape.assign(v.shape, v.shape + v.ndim);
  n.attributes = InputAttributes{};
  return n;
}

}  // namespace library_detail
}  // namespace

void CallersLibrary::compute_plainly(const Node& n, std::span<const View> arguments, const View& result) const {
  Graph g;
  for (const View& v : arguments) g.nodes.push_back(library_detail::input_of(v));
  g.nodes.push_back(n);
  g.nodes.back().arguments = {0, 1};
  g.nodes.back().stage = 0;
  g.stages.push_back({std::string(name(n.op)), ""});
  g.outputs.push_back({"", 2});
  try {
    run_reference(g, {arguments.begin(), arguments.end()}, {result});
  } catch (const ValueError& e) {
    throw ValueError(call_.says(e.what()));
  }
}

void CallersLibrary::compute(const Node& n, std::span<const View> arguments, const View& result, Stream stream) {
  arrays::LibraryFunction function = framework_.function_for(n, result.place);
  if (!function) function = arrays::numpy_framework().function_for(n, result.place);
  if (function) {
    const py::gil_scoped_acquire locked;
    return function(n, arguments, result, stream);
  }
  if (result.place.on_host()) return compute_plainly(n, arguments, result);
  throw DeviceError(call_.says(std::string(name(n.op)) + " runs through the array library, and " + framework_.name() +
                               " has none that works on memory of others: call it with torch tensors" +
                               (n.op == Op::conv2d ? "" : " or CuPy arrays")));
}

}  // namespace kfusion::fuse
