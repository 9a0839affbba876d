#include "python/fuse/library.hpp"

#include <algorithm>

#include "kfusion/divide_up.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/device.hpp"
#include "kfusion/reference/reference.hpp"
#include "python/arrays/library_functions.hpp"
#include "python/fuse/entry.hpp"
#include "runtime/poison.hpp"

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

bool as_wanted(const View& v, const View& wanted) {
  return v.dtype == wanted.dtype && v.place == wanted.place && v.ndim == wanted.ndim &&
         std::equal(v.shape, v.shape + v.ndim, wanted.shape);
}

/// Whether two views of one shape have the same strides where these matter.
bool lies_as(const View& v, const View& wanted) {
  for (int d = 0; d < v.ndim && v.size() > 0; ++d)
    if (v.shape[d] > 1 && v.strides[d] != wanted.strides[d]) return false;
  return true;
}

constexpr std::int64_t kLeastRows = 8, kLeastColumns = 256;  ///< else the second launch costs more than it saves

bool is_whole(std::int64_t bytes) { return bytes % kRowAlignment == 0; }

/// Whether x w, of half types, has rows of no whole 16 bytes, and w^T x^T has: cuBLAS's kernels for any alignment take
/// six times as long (4096 x 768 by 768 x 50257 on an H200: 3354 us; transposed 432, and 220 to transpose it back).
bool runs_better_turned(const Node& n, const View& x, const View& w, const View& result) {
  if (n.op != Op::matmul || !is_half(n.dtype) || x.ndim < 2 || w.ndim != 2) return false;
  if (x.dtype != n.dtype || w.dtype != n.dtype || !is_c_contiguous(x) || result.size() == 0) return false;
  const auto item = static_cast<std::int64_t>(item_bytes(n.dtype));
  const std::int64_t columns = w.shape[1], rows = result.size() / columns;
  return rows >= kLeastRows && columns >= kLeastColumns && !is_whole(columns * item) && is_whole(rows * item) &&
         is_whole(w.shape[0] * item) && w.strides[0] == item && is_whole(w.strides[1]) &&
         is_whole(reinterpret_cast<std::intptr_t>(x.data)) && is_whole(reinterpret_cast<std::intptr_t>(w.data));
}

bool lies_last(const View& v) {
  const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
  return v.ndim == 4 && v.strides[1] == item && v.strides[3] == item * v.shape[1] &&
         v.strides[2] == item * v.shape[1] * v.shape[3];
}

/// Whether a convolution's result is planned with its channels innermost, and its image has them outermost.
bool is_to_turn(const Node& n, const View& image, const View& result) {
  return n.op == Op::conv2d && !image.place.on_host() && lies_last(result) && !lies_last(image) && image.shape[1] > 1;
}

std::string described(const View& v) {
  return std::string(name(v.dtype)) + " " + shape_text(v.ndim, v.shape) + " on " + to_string(v.place);
}

}  // namespace library_detail
}  // namespace

void CallersLibrary::compute_plainly(const Node& n, std::span<const LibraryArgument> arguments,
                                     const View& result) const {
  Graph g;
  std::vector<View> views;
  for (const LibraryArgument& a : arguments) {
    g.nodes.push_back(library_detail::input_of(a.view));
    views.push_back(a.view);
  }
  g.nodes.push_back(n);
  g.nodes.back().arguments = {0, 1};
  g.nodes.back().stage = 0;
  g.stages.push_back({std::string(name(n.op)), ""});
  g.outputs.push_back({"", 2});
  try {
    run_reference(g, views, {result});
  } catch (const ValueError& e) {
    throw ValueError(call_.says(e.what()));
  }
}

/// Lets the library's work go to a stream.
class CallersLibrary::Order {
 public:
  Order(const CallersLibrary& library, const arrays::Bridge& bridge, Place place, Stream stream) {
    if (place.on_host() || library.framework_.current_stream(place.index) == stream) return;
    context_.emplace(bridge.on_stream(stream, place.index));
  }
  /// Whether the library works there anyway.
  bool is_its_own() const { return !context_; }

 private:
  std::optional<arrays::With> context_;
};

void CallersLibrary::compute(const Node& n, std::span<const LibraryArgument> arguments, LibraryResult& result,
                             Place place, Stream stream) {
  arrays::LibraryFunction function = framework_.function_for(n, place);
  const arrays::Bridge* bridge = arrays::bridge_of(framework_.library(), place);
  if (!function) {
    function = arrays::numpy_framework().function_for(n, place);
    bridge = arrays::bridge_of(arrays::ArrayLibrary::kNumpy, place);
  }
  if (!function && place.on_host()) return compute_plainly(n, arguments, result.view);
  if (!function || !bridge)
    throw DeviceError(call_.says(std::string(name(n.op)) + " runs through the array library, and " + framework_.name() +
                                 " has none that works on memory of others: call it with torch tensors" +
                                 (n.op == Op::conv2d ? "" : " or CuPy arrays")));
  const py::gil_scoped_acquire locked;
  const Order order(*this, *bridge, place, stream);
  std::optional<arrays::With> as_planned;  // in the dtypes of the graph, not in those that torch.autocast would choose
  if (framework_.library() == arrays::ArrayLibrary::kTorch && arrays::torch_autocast())
    as_planned.emplace(
        arrays::loaded_module("torch").attr("autocast")(place.on_host() ? "cpu" : "cuda", py::arg("enabled") = false));
  if (framework_.library() == arrays::ArrayLibrary::kTorch && !place.on_host() &&
      library_detail::runs_better_turned(n, arguments[0].view, arguments[1].view, result.view))
    return compute_turned(n, arguments, result, *bridge, stream);
  py::object x = argument(arguments[0], *bridge);
  if (library_detail::is_to_turn(n, arguments[0].view, result.view))
    x = x.attr("contiguous")(py::arg("memory_format") = arrays::loaded_module("torch").attr("channels_last"));
  if (!order.is_its_own()) make_result(result);
  const bool is_left = !result.view.data && result.view.size() > 0;
  const bool is_made = result.kept || is_left || n.op == Op::conv2d;  // torch's convolutions write to no array of ours
  const py::object out = is_made ? py::none() : bridge->view(result.view);
  py::object made = function(n, x, argument(arguments[1], *bridge), out);
  if (is_made && !hand_over(made, result, order.is_its_own()))
    take(std::string(name(n.op)), std::move(made), result, *bridge);
}

void CallersLibrary::compute_turned(const Node& n, std::span<const LibraryArgument> arguments, LibraryResult& result,
                                    const arrays::Bridge& bridge, Stream stream) {
  const py::object x = argument(arguments[0], bridge), w = argument(arguments[1], bridge);
  const py::object rows = x.attr("reshape")(-1, arguments[1].view.shape[0]);
  const py::object turned =
      framework_.function_for(n, result.view.place)(n, w.attr("t")(), rows.attr("t")(), py::none());
  const Array product = arrays::borrow(call_, "a product", turned);
  View from = result.view;
  from.data = product.view.data;
  const int last = from.ndim - 1;
  from.strides[last] = product.view.strides[0];
  for (std::int64_t d = last, step = product.view.strides[1]; d-- > 0; step *= from.shape[d]) from.strides[d] = step;
  Array to;
  make_result(result);
  to.view = result.view;
  if (result.kept) {
    py::tuple shape(from.ndim);
    for (int d = 0; d < from.ndim; ++d) shape[d] = from.shape[d];
    py::object object = x.attr("new_empty")(shape);
    to = checked(std::string(name(n.op)), object, result.view);
    take(std::string(name(n.op)), std::move(object), result, bridge);
    to.view = result.view;
  }
  const auto c = copying(device_, from, to);
  const std::byte* const source = from.data;
  std::byte* const target = to.view.data;
  c->executable.run({&source, &target, nullptr, stream, nullptr});
}

/// An array that the caller gave goes to the function as it is, and so does what another function has made.
py::object CallersLibrary::argument(const LibraryArgument& a, const arrays::Bridge& bridge) const {
  const auto& inputs = inputs_.all();
  if (a.slot >= 0 && static_cast<std::size_t>(a.slot) < inputs.size()) {
    const Array& given = *inputs[static_cast<std::size_t>(a.slot)];
    if (given.framework->library() == framework_.library() && framework_.library() != arrays::ArrayLibrary::kOther)
      return py::reinterpret_borrow<py::object>(given.object);
  }
  if (const auto kept = kept_.find(a.slot); kept != kept_.end()) return kept->second.object;
  return bridge.view(a.view);
}

Array CallersLibrary::checked(const std::string& function, const py::object& object, const View& wanted) {
  Array a = arrays::borrow(call_, "a result of a library call", object);
  if (!library_detail::as_wanted(a.view, wanted))
    throw ValueError(call_.says(function + " gave " + library_detail::described(a.view) +
                                ", where it was traced with " + library_detail::described(wanted)));
  return a;
}

void CallersLibrary::take(const std::string& function, py::object object, LibraryResult& r,
                          const arrays::Bridge& bridge) {
  if (!r.kept) {
    checked(function, object, r.view);
    make_result(r);
    return bridge.write(object, r.view);
  }
  Array a = checked(function, object, r.view);
  if (!library_detail::lies_as(a.view, r.view)) {
    object = bridge.laid_out(r.view, object);
    a = checked(function, object, r.view);
  }
  if (!is_aligned_to_vectors(a.view)) {
    object = bridge.copy_of(a.view, object);
    a = checked(function, object, r.view);
  }
  r.view.data = a.view.data;
  kept_[r.slot] = {std::move(object), std::move(a.keep)};
}

bool CallersLibrary::hand_over(const py::object& object, LibraryResult& r, bool in_order) {
  const auto i = static_cast<std::size_t>(r.slot) - inputs_.all().size();
  if (r.kept || r.slot < 0 || i >= results_.size() || !fresh_[i] || !in_order) return false;
  arrays::Result& result = results_[i];
  const py::object type = result.object ? py::type::of(result.object) : arrays::loaded_module("torch").attr("Tensor");
  if (framework_.library() != arrays::ArrayLibrary::kTorch || !py::type::of(object).is(type)) return false;
  const Array a = arrays::borrow(call_, "a result of a library call", object);
  // A part of a result that several functions make is no result.
  const bool is_whole = r.view.data == result.view.data && library_detail::as_wanted(r.view, result.view);
  if (!is_whole || !library_detail::as_wanted(a.view, r.view) || !library_detail::lies_as(a.view, r.view) ||
      !library_detail::lies_as(r.view, result.view) || !is_aligned_to_vectors(a.view))
    return false;
  result.object = object;
  result.view.data = r.view.data = a.view.data;
  r.kept = true;
  return true;
}

void CallersLibrary::call(const Node& n, std::span<const LibraryArgument> arguments, std::span<LibraryResult> results,
                          Place place, Stream stream) {
  const py::gil_scoped_acquire locked;
  const auto& function = std::get<LibraryCallAttributes>(n.attributes);
  const arrays::Bridge* const bridge = arrays::bridge_of(framework_.library(), place);
  if (!bridge)
    throw DeviceError(
        call_.says(function.function + " runs through the array library, and " + framework_.name() +
                   " has none that works on memory of others: call it with torch tensors or CuPy arrays"));
  const Order order(*this, *bridge, place, stream);
  py::list given(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) given[i] = argument(arguments[i], *bridge);
  const py::object f = inputs_.calls().at(static_cast<std::size_t>(function.number));
  if (py::hasattr(f, "into")) return call_into(f, function.function, given, results, *bridge);
  const py::object computed = f(*given);
  // An alternative, or a function that says so, gives no view of what it gets.
  const bool is_new = function.kernels_ns >= 0 || py::hasattr(f, "gives_own");
  for (LibraryResult& r : results) {
    const py::object made = computed[py::int_(r.index)];
    if (!is_new || !hand_over(made, r, order.is_its_own())) take(function.function, made, r, *bridge);
  }
}

/// Calls a function that computes only the results that it is asked for, into the arrays that it is given for them, if
/// any.
void CallersLibrary::call_into(const py::object& f, const std::string& name, const py::list& given,
                               std::span<LibraryResult> results, const arrays::Bridge& bridge) {
  py::dict wanted;
  for (LibraryResult& r : results) make_result(r);
  for (const LibraryResult& r : results)
    wanted[py::int_(r.index)] = r.kept ? py::object(py::none()) : bridge.view(r.view);
  const py::object computed = f.attr("into")(wanted, *given);
  for (LibraryResult& r : results)
    if (r.kept) take(name, computed[py::int_(r.index)], r, bridge);
}

std::byte* CallersLibrary::make(int slot) {
  const py::gil_scoped_acquire locked;
  arrays::Result& result = results_[static_cast<std::size_t>(slot) - inputs_.all().size()];
  result = arrays::fresh(call_, result.view, *inputs_.first());
  if (poisons_memory())
    poison(result.view.data, static_cast<std::size_t>(result.view.nbytes()), result.view.place,
           call_.stream(framework_, result.view.place.index));
  return result.view.data;
}

void CallersLibrary::make_result(LibraryResult& r) {
  if (!r.kept && !r.view.data && r.view.size() > 0) r.view.data = make(r.slot);
}

std::byte* CallersLibrary::lend(int slot, std::int64_t bytes, Place place, Stream stream) {
  if (framework_.library() != arrays::ArrayLibrary::kTorch) return nullptr;
  const py::gil_scoped_acquire locked;
  const Order order(*this, *arrays::bridge_of(framework_.library(), place), place, stream);
  View layout;
  layout.dtype = DType::kFloat64;
  layout.place = place;
  layout.ndim = 1;
  layout.shape[0] = divide_up(bytes, static_cast<std::int64_t>(item_bytes(layout.dtype)));
  set_c_strides(layout);
  arrays::Result memory = arrays::fresh(call_, layout, *inputs_.first());
  lent_[slot] = std::move(memory.object);
  return memory.view.data;
}

/// A donated argument is a tensor that only its backward pass has: without its memory, whoever names it still.
void CallersLibrary::release(int slot) {
  const py::gil_scoped_acquire locked;
  if (static_cast<std::size_t>(slot) >= inputs_.all().size()) {
    if (kept_.erase(slot) == 0) lent_.erase(slot);
  } else if (framework_.library() == arrays::ArrayLibrary::kTorch) {
    inputs_.all()[static_cast<std::size_t>(slot)]->object.attr("set_")();
  }
}

}  // namespace kfusion::fuse
