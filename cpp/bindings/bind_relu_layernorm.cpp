#include "bindings/arguments.hpp"
#include "bindings/bindings.hpp"
#include "bindings/relu_layernorm_cuda.hpp"
#include "cpu/relu_layernorm/relu_layernorm.hpp"

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

Each row is read from memory once and written once; it stays on chip in between. A row too long for that is read
twice. NaN stays NaN. Half types are computed in float32, the others in their own type.

Args:
    x: float16, bfloat16, float32 or float64, shape (..., cols), any strides: a NumPy array or a DLPack tensor (torch,
        CuPy, JAX, ...), on the CPU or a CUDA device. It is read where it lies and never written to.
    weight: None or shape (cols,), x's dtype or float32, the same kind of array on the same device.
    bias: likewise.
    eps: added to the variance; finite and >= 0.
    out: None or an array of x's kind, shape, dtype and device to write into. It may be x itself.
    stream: CUDA only: an integer handle or a stream object; None is the current stream of torch or CuPy, and the legacy
        default stream for other arrays.

Returns:
    `out`, or a new array of x's kind, shape, dtype and device, in x's memory layout where that is dense (else C order).
    On CUDA the work is enqueued, not finished.

Raises:
    TypeError: the kind, dtype or device of an argument is not as above.
    ValueError: a shape or value is not as above, or `out` overlaps another argument other than as x itself.
    RuntimeError: an argument requires grad while torch's grad mode is on.
    MemoryError: no host memory for the result.
    kfusion.DeviceError: what the CUDA driver refuses, device memory included.

Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450, eq. 4
(without the eps that every implementation adds).
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

py::object relu_layernorm(bool fused, py::handle x_object, py::handle weight, py::handle bias, py::handle eps,
                          py::handle out, py::handle stream) {
  Call call(fused ? "fused_relu_layernorm" : "unfused_relu_layernorm", stream);
  const Array x = read_x(call, x_object);
  if (x.view.ndim == 0) throw ValueError(call.says("x must have at least one axis, got shape ()"));
  const Array w = read_parameter(call, "weight", weight, x), b = read_parameter(call, "bias", bias, x);
  const double epsilon = read_eps(call, eps);
  Result r = make_result(call, out, x, /*may_be_x=*/true);
  require_disjoint(call, "weight", w, r.view);
  require_disjoint(call, "bias", b, r.view);

  const ReluLayernorm on_cuda{fused, x, w, b, r.view, epsilon};
  std::shared_ptr<const Executable> kernels;
  if (!x.view.place.on_host() && x.view.size() > 0) kernels = relu_layernorm_on_cuda(on_cuda);
  const auto on_cpu = [&] {
    RowProblem p = make_row_problem(x.view, r.view);
    p.weight = column_operand(w);
    p.bias = column_operand(b);
    p.eps = epsilon;
    (fused ? cpu::fused_relu_layernorm : cpu::unfused_relu_layernorm)(p);
  };
  return run(call, x, r, out.is_none(), on_cpu, [&](Stream s) { run(*kernels, on_cuda, s); });
}

py::object fused(py::handle x, py::handle weight, py::handle bias, py::handle eps, py::handle out, py::handle stream) {
  return relu_layernorm(true, x, weight, bias, eps, out, stream);
}

py::object unfused(py::handle x, py::handle weight, py::handle bias, py::handle eps, py::handle out,
                   py::handle stream) {
  return relu_layernorm(false, x, weight, bias, eps, out, stream);
}

}  // namespace

void bind_relu_layernorm(py::module_& m) {
  const auto def = [&](const char* name, auto function, const char* doc) {
    m.def(name, function, py::arg("x"), py::arg("weight") = py::none(), py::arg("bias") = py::none(), py::kw_only(),
          py::arg("eps") = 1e-5, py::arg("out") = py::none(), py::arg("stream") = py::none(), doc);
  };
  def("fused_relu_layernorm", &fused, kFusedDoc);
  def("unfused_relu_layernorm", &unfused, kUnfusedDoc);
}

}  // namespace kfusion
