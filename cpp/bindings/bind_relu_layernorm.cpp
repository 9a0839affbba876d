#include <cmath>

#include "bindings/arrays/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "cpu/relu_layernorm.hpp"
#include "host/cuda.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

using arrays::Array;
using arrays::Call;
using arrays::Result;

constexpr const char* kFusedDoc =
    R"(fused_relu_layernorm(x, weight=None, bias=None, *, eps=1e-05, out=None, stream=None)
--

ReLU followed by LayerNorm over the last axis, in one kernel.

    r = max(x, 0)
    y = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias      (biased variance, as in LayerNorm)

Each row is read from memory once and written once; it stays on chip in between. A row too long for that is read twice
on a GPU. NaN stays NaN. Half types are computed in float32, the others in their own type.

Args:
    x: float16, bfloat16, float32 or float64, shape (..., cols), any strides: a NumPy array or a DLPack tensor (torch,
        CuPy, JAX, ...), on the CPU or a CUDA device. It is read where it lies and never written to.
    weight: None or shape (cols,), x's dtype or float32, the same kind of array on the same device.
    bias: likewise.
    eps: added to the variance; finite and >= 0.
    out: None or an array of x's kind, shape, dtype and device to write into. It may be x itself.
    stream: CUDA only: an integer handle or a stream object; None is the array library's current stream.

Returns:
    `out`, or a new array of x's kind, shape, dtype and device. On CUDA the work is enqueued, not finished.

Raises:
    TypeError: the kind, dtype or device of an argument is not as above.
    ValueError: a shape or value is not as above, or `out` overlaps another argument other than as x itself.
    RuntimeError: an argument requires grad while torch's grad mode is on.
    kfusion.DeviceError: what the CUDA driver refuses.

Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450, eq. 4.
)";

constexpr const char* kUnfusedDoc =
    R"(unfused_relu_layernorm(x, weight=None, bias=None, *, eps=1e-05, out=None, stream=None)
--

What fused_relu_layernorm computes, in five kernels: eight passes over x's memory instead of two.

    relu    r = max(x, 0)                                   read, write
    mean    m = sum(r) / cols                               read
    var     v = sum((r - m)^2) / cols                       read
    centre  c = r - m                                       read, write
    scale   y = c / sqrt(v + eps) * weight + bias           read, write

r and c have x's dtype and live in memory; the row statistics m and v have the compute type (float32, or float64 for
float64). Arguments, result and errors are those of fused_relu_layernorm.
)";

constexpr const char* kCopyDoc = R"(copy(x, *, out=None, stream=None)
--

y = x by the fastest copy there is: the ceiling of every kernel that reads and writes its array once.

Args:
    x: any array that fused_relu_layernorm takes, C-contiguous.
    out: None or a C-contiguous array of x's kind, shape, dtype and device, disjoint from x.
    stream: as for fused_relu_layernorm.

Returns:
    `out`, or a new array.

Raises:
    TypeError, ValueError, kfusion.DeviceError: as fused_relu_layernorm.
)";

double read_eps(const Call& call, py::handle eps) {
  const double value = PyFloat_AsDouble(eps.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    throw TypeError(call.says("eps must be a number, got " + py::repr(py::type::of(eps)).cast<std::string>()));
  }
  if (!std::isfinite(value) || value < 0)
    throw ValueError(call.says("eps must be finite and >= 0, got " + py::str(eps).cast<std::string>()));
  return value;
}

void require_same_place(const Call& call, const char* argument, const Array& a, const Array& x) {
  if (a.framework != x.framework)
    throw TypeError(call.says(std::string(argument) + " must be the same kind of array as x (" + x.framework->name() +
                              "), got " + a.framework->name()));
  if (a.view.device != x.view.device)
    throw TypeError(call.says(std::string(argument) + " must be on x's device (" + to_string(x.view.device) +
                              "), got " + to_string(a.view.device)));
}

/// Borrows weight or bias into `p`; returns the array so that it lives as long as the call.
Array read_parameter(Call& call, const char* argument, py::handle object, const Array& x, ColOperand& p) {
  if (object.is_none()) return {};
  Array a = arrays::borrow(call, argument, object);
  require_same_place(call, argument, a, x);
  const std::int64_t cols = x.view.shape[x.view.ndim - 1];
  if (a.view.ndim != 1 || a.view.shape[0] != cols)
    throw ValueError(call.says(std::string(argument) + " must have shape (" + std::to_string(cols) + ",), got " +
                               shape_text(a.view.ndim, a.view.shape)));
  if (a.view.dtype != x.view.dtype && a.view.dtype != DType::kFloat32)
    throw TypeError(call.says(std::string(argument) + " must be " + name(x.view.dtype) +
                              (x.view.dtype == DType::kFloat32 ? "" : " or float32") + ", got " + name(a.view.dtype)));
  p = {a.view.data, a.view.dtype, a.view.strides[0]};
  return a;
}

/// A caller's `out`, checked against x; its overlap with x is one of those that kernels handle exactly.
Result read_out(Call& call, py::handle object, const Array& x, bool may_be_x) {
  Array a = arrays::borrow(call, "out", object);
  require_same_place(call, "out", a, x);
  if (a.framework->immutable())
    throw TypeError(call.says("out must be writable, and " + a.framework->name() + " arrays are not"));
  if (a.view.dtype != x.view.dtype)
    throw TypeError(call.says(std::string("out must be ") + name(x.view.dtype) + ", got " + name(a.view.dtype)));
  const std::string wanted = shape_text(x.view.ndim, x.view.shape), came = shape_text(a.view.ndim, a.view.shape);
  if (wanted != came) throw ValueError(call.says("out must have shape " + wanted + ", got " + came));
  if (a.view.read_only) throw ValueError(call.says("out must be writable, got a read-only array"));
  if (self_overlapping(a.view))
    throw ValueError(call.says("out must not overlap itself, got strides " + shape_text(a.view.ndim, a.view.strides)));
  const Overlap o = overlap(x.view, a.view);
  if (o == Overlap::kOther || (o == Overlap::kSame && !may_be_x))
    throw ValueError(call.says(std::string("out must not overlap x") + (may_be_x ? " (it may be x itself)" : "")));
  return {a.view, py::reinterpret_borrow<py::object>(object)};
}

void require_disjoint(const Call& call, const char* argument, const Array& a, const View& out) {
  if (a.framework && overlap(a.view, out) != Overlap::kNone)
    throw ValueError(call.says(std::string("out must not overlap ") + argument));
}

/// The array to write into: the caller's `out`, or a fresh one of x's kind.
Result make_result(Call& call, py::handle out, const Array& x, bool may_be_x) {
  return out.is_none() ? x.framework->empty_like(call, x) : read_out(call, out, x, may_be_x);
}

Array read_x(Call& call, py::handle object) {
  Array x = arrays::borrow(call, "x", object);
  if (x.view.device.cuda)
    cuda::require(x.view.device.index);
  else if (call.has_stream_argument())
    throw ValueError(call.says("stream applies to CUDA arrays, and x is on the CPU"));
  return x;
}

/// Runs one of the two without the GIL, nothing where x is empty. A result that is `fresh` lies in memory which its
/// library orders on its own current stream: work on another stream waits for it, and it for the work.
template <class OnCpu, class OnCuda>
void run(Call& call, const Array& x, bool fresh, OnCpu on_cpu, OnCuda on_cuda) {
  if (x.view.size() == 0) return;
  const int device = x.view.device.index;
  if (!x.view.device.cuda) {
    const ReleaseGil unlocked;
    return on_cpu();
  }
  const cuda::Stream stream = call.stream(*x.framework, device);
  const cuda::Stream memory = fresh ? x.framework->current_stream(device) : stream;
  const ReleaseGil unlocked;
  if (memory != stream) cuda::wait(stream, memory, device);
  on_cuda(stream);
  if (memory != stream) cuda::wait(memory, stream, device);
}

using OnCpu = void (*)(const RowProblem&);
using OnCuda = void (*)(const RowProblem&, int device, cuda::Stream);

template <OnCpu on_cpu, OnCuda on_cuda>
py::object relu_layernorm(const char* function, py::handle x_object, py::handle weight, py::handle bias, py::handle eps,
                          py::handle out, py::handle stream) {
  Call call(function, stream);
  const Array x = read_x(call, x_object);
  if (x.view.ndim == 0) throw ValueError(call.says("x must have at least one axis, got shape ()"));
  ColOperand w, b;
  const Array weight_array = read_parameter(call, "weight", weight, x, w);
  const Array bias_array = read_parameter(call, "bias", bias, x, b);
  const double epsilon = read_eps(call, eps);
  Result r = make_result(call, out, x, /*may_be_x=*/true);
  require_disjoint(call, "weight", weight_array, r.view);
  require_disjoint(call, "bias", bias_array, r.view);

  RowProblem p = make_row_problem(x.view, r.view);
  p.weight = w;
  p.bias = b;
  p.eps = epsilon;
  run(call, x, out.is_none(), [&] { on_cpu(p); }, [&](cuda::Stream s) { on_cuda(p, x.view.device.index, s); });
  return out.is_none() ? x.framework->finish(r) : std::move(r.object);
}

py::object fused(py::handle x, py::handle weight, py::handle bias, py::handle eps, py::handle out, py::handle stream) {
  return relu_layernorm<cpu::fused_relu_layernorm, cuda::fused_relu_layernorm>("fused_relu_layernorm", x, weight, bias,
                                                                               eps, out, stream);
}

py::object unfused(py::handle x, py::handle weight, py::handle bias, py::handle eps, py::handle out,
                   py::handle stream) {
  return relu_layernorm<cpu::unfused_relu_layernorm, cuda::unfused_relu_layernorm>("unfused_relu_layernorm", x, weight,
                                                                                   bias, eps, out, stream);
}

py::object copy(py::handle x_object, py::handle out, py::handle stream) {
  Call call("copy", stream);
  const Array x = read_x(call, x_object);
  Result r = make_result(call, out, x, /*may_be_x=*/false);
  if (!is_c_contiguous(x.view) || !is_c_contiguous(r.view))
    throw ValueError(call.says("x and out must be C-contiguous"));
  const auto bytes = static_cast<std::size_t>(x.view.nbytes());
  run(
      call, x, out.is_none(), [&] { cpu::copy(r.view.data, x.view.data, bytes); },
      [&](cuda::Stream s) { cuda::copy(r.view.data, x.view.data, bytes, x.view.device.index, s); });
  return out.is_none() ? x.framework->finish(r) : std::move(r.object);
}

}  // namespace

void bind_relu_layernorm(py::module_& m) {
  const auto def = [&](const char* name, auto function, const char* doc) {
    m.def(name, function, py::arg("x"), py::arg("weight") = py::none(), py::arg("bias") = py::none(), py::kw_only(),
          py::arg("eps") = 1e-5, py::arg("out") = py::none(), py::arg("stream") = py::none(), doc);
  };
  def("fused_relu_layernorm", &fused, kFusedDoc);
  def("unfused_relu_layernorm", &unfused, kUnfusedDoc);
  m.def("copy", &copy, py::arg("x"), py::kw_only(), py::arg("out") = py::none(), py::arg("stream") = py::none(),
        kCopyDoc);
}

}  // namespace kfusion
