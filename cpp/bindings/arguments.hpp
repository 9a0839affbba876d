// The arguments that kernels have in common: read in order, refused with the argument's name before anything runs.
#pragma once
#include "bindings/arrays/array.hpp"
#include "bindings/gil.hpp"
#include "kfusion/rows.hpp"

namespace kfusion {

/// The matrix. Throws DeviceError where its device cannot be used, ValueError for a `stream=` with an array on the CPU.
arrays::Array read_x(arrays::Call& call, pybind11::handle object);

/// A finite number >= 0.
double read_eps(const arrays::Call& call, pybind11::handle eps);

/// Borrows weight or bias (None: absent) into `p`; the array must live as long as the call.
arrays::Array read_parameter(arrays::Call& call, const char* argument, pybind11::handle object, const arrays::Array& x,
                             ColOperand& p);

/// The array to write into: the caller's `out`, checked, or a fresh one of x's kind and layout where it is None.
arrays::Result make_result(arrays::Call& call, pybind11::handle out, const arrays::Array& x, bool may_be_x);

/// Throws ValueError where `out` overlaps a parameter.
void require_disjoint(const arrays::Call& call, const char* argument, const arrays::Array& a, const View& out);

/// Runs one of the two without the GIL, nothing where x is empty, and hands out the result. One that is `fresh` lies in
/// memory that its library orders on its own current stream: work on another stream waits for it, and it for the work.
template <class OnCpu, class OnCuda>
pybind11::object run(arrays::Call& call, const arrays::Array& x, arrays::Result& r, bool fresh, OnCpu on_cpu,
                     OnCuda on_cuda) {
  const Place place = x.view.place;
  if (x.view.size() > 0 && !place.cuda) {
    const ReleaseGil unlocked;
    on_cpu();
  } else if (x.view.size() > 0) {
    const cuda::Stream stream = call.stream(*x.framework, place.index);
    const cuda::Stream memory = fresh ? x.framework->current_stream(place.index) : stream;
    const ReleaseGil unlocked;
    if (memory != stream) cuda::wait(stream, memory, place.index);
    on_cuda(stream);
    if (memory != stream) cuda::wait(memory, stream, place.index);
  }
  return fresh ? x.framework->finish(r) : std::move(r.object);
}

}  // namespace kfusion
