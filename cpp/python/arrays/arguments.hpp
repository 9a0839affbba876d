// The arguments that kernels have in common: read in order, refused with the argument's name before anything runs.
#pragma once
#include "python/arrays/array.hpp"
#include "python/gil.hpp"

namespace kfusion {

/// The matrix. Throws DeviceError where its device cannot be used, ValueError for a `stream=` with an array on the CPU.
arrays::Array read_x(arrays::Call& call, pybind11::handle object);

/// The array to write into: the caller's `out`, checked, or a fresh one of x's kind and layout where it is None.
arrays::Result make_result(arrays::Call& call, pybind11::handle out, const arrays::Array& x);

/// Calls `work(stream)` without the GIL; the stream is 0 where their place has none.
///
/// Memory of `fresh` results, and any of our own, is ordered on its library's current stream: work on another stream
/// waits for that one, and that one for the work. Where the library's stream is not known, the call waits for the work.
/// It waits for what was enqueued before an exception, too: memory that is given back then may be used again at once.
template <class Work>
void in_stream_order(arrays::Call& call, const arrays::Framework& library, Place place, bool fresh, const Work& work) {
  const Memory& its = memory_of(place);
  if (!its.has_streams) {
    const ReleaseGil unlocked;
    return work(Stream{0});
  }
  const Stream stream = call.stream(library, place.index);
  const bool ordered = fresh || &library == &arrays::own_framework();
  const bool elsewhere = ordered && call.has_stream_argument();  // else it is the library's current stream that we use
  const Stream memory = elsewhere ? library.current_stream(place.index) : stream;
  const bool wait = !library.knows_stream() && !call.has_stream_argument();
  const ReleaseGil unlocked;
  const auto end = [&] {
    if (memory != stream) its.wait(memory, stream, place.index);
    if (wait) its.synchronize(place.index, stream);
  };
  if (memory != stream) its.wait(stream, memory, place.index);
  try {
    work(stream);
  } catch (...) {
    try {
      end();
    } catch (const DeviceError&) {  // the first error says more
    }
    throw;
  }
  end();
}

/// Runs one of the two without the GIL, nothing where x is empty, and hands out the result.
template <class OnCpu, class OnCuda>
pybind11::object run(arrays::Call& call, const arrays::Array& x, arrays::Result& r, bool fresh, OnCpu on_cpu,
                     OnCuda on_cuda) {
  const Place place = x.view.place;
  if (x.view.size() > 0)
    in_stream_order(call, *x.framework, place, fresh,
                    [&](Stream stream) { place.on_host() ? on_cpu() : on_cuda(stream); });
  if (fresh) return x.framework->finish(r);
  x.framework->written(r.object);
  return std::move(r.object);
}

}  // namespace kfusion
