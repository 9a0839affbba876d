#include "bindings/relu_layernorm_cuda.hpp"

#include <bit>
#include <map>
#include <mutex>

#include "bindings/device_dict.hpp"
#include "bindings/fuse/signature.hpp"
#include "bindings/gil.hpp"
#include "bindings/plan_options.hpp"
#include "kfusion/graph/builder.hpp"
#include "runtime/views.hpp"

namespace py = pybind11;

namespace kfusion {
namespace relu_layernorm_cuda_detail {

using arrays::Array;

/// What decides which kernels a call runs.
using Words = std::pmr::vector<std::uint64_t>;

class Table {
 public:
  std::shared_ptr<const Executable> find(const Words& words) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(words);
    return found == all_.end() ? nullptr : found->second;
  }
  void insert(const Words& words, std::shared_ptr<const Executable> made) {
    const std::lock_guard lock(mutex_);
    if (all_.size() >= kMost) all_.clear();
    all_.insert_or_assign(Words(words, std::pmr::get_default_resource()), std::move(made));
  }

 private:
  static constexpr std::size_t kMost = 512;
  std::mutex mutex_;
  std::map<Words, std::shared_ptr<const Executable>> all_;
};

/// Of all calls; never destroyed: threads may still run at exit.
Table& table() {
  static auto& t = *new Table;
  return t;
}

bool aligned(const Array& a) { return !a.framework || fuse::is_aligned_to_vectors(a.view); }

/// As kfusion._relu_layernorm.prepare takes an array.
py::object described(const Array& a) {
  if (!a.framework) return py::none();
  const View& v = a.view;
  const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
  return py::make_tuple(arrays::to_tuple(v.ndim, v.shape), name(v.dtype),
                        is_c_contiguous(v) ? py::tuple() : arrays::to_tuple(v.ndim, v.strides, item));
}

std::shared_ptr<const Executable> make(const ReluLayernorm& c) {
  const Place place = c.x.view.place;
  const py::tuple prepared =
      py::module_::import("kfusion._relu_layernorm")
          .attr("prepare")(described(c.x), described(c.weight), described(c.bias), c.eps, to_string(place));
  const Graph graph = prepared[0].cast<const GraphBuilder&>().graph();
  const Device device = read_device(prepared[1]);
  const PlanOptions options = options_to_run(c.fused);
  const bool all_aligned =
      aligned(c.x) && aligned(c.weight) && aligned(c.bias) && fuse::is_aligned_to_vectors(c.result);
  const ReleaseGil unlocked;
  return std::make_shared<const Executable>(make_plan(graph, device, options), place, all_aligned,
                                            OutputStrides{element_strides(c.result)});
}

}  // namespace relu_layernorm_cuda_detail

std::shared_ptr<const Executable> relu_layernorm_on_cuda(const ReluLayernorm& c) {
  using namespace relu_layernorm_cuda_detail;
  std::byte memory[1024];  // so that most calls allocate nothing
  std::pmr::monotonic_buffer_resource resource(memory, sizeof memory);
  Words words(&resource);
  words.reserve(64);
  words.insert(words.end(), {std::uint64_t{c.fused}, std::bit_cast<std::uint64_t>(c.eps)});
  for (const Array* a : {&c.x, &c.weight, &c.bias}) fuse::append_words(*a, words);
  Array result;
  result.view = c.result;
  fuse::append_words(result, words);
  auto found = table().find(words);
  if (!found) table().insert(words, found = make(c));
  return found;
}

/// An `out` that is x itself is no hindrance: kernels of rows read each element for the last time before they write it.
void run(const Executable& executable, const ReluLayernorm& c, Stream stream) {
  const std::byte* inputs[3];
  int count = 0;
  for (const arrays::Array* a : {&c.x, &c.weight, &c.bias})
    if (a->framework) inputs[count++] = a->view.data;
  std::byte* const outputs[] = {c.result.data};
  executable.run({.inputs = inputs, .outputs = outputs, .parameters = nullptr, .stream = stream});
}

}  // namespace kfusion
