// Everything the rest of the project asks of CUDA. Built with nvcc it is implemented by the files beside this one,
// without by no_cuda.cpp, whose functions throw DeviceError; no other file knows which.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kfusion/error.hpp"

namespace kfusion::cuda {

/// A cudaStream_t: 0 and 1 the legacy default stream, 2 the per-thread one.
using Stream = std::uintptr_t;

bool built();                 ///< whether this build has CUDA code
int device_count() noexcept;  ///< 0 without a build, a driver or a device; never throws
/// Throws a DeviceError that helps unless `device` is usable now (build, driver, device, image for its architecture,
/// and not in a forked child of a process that had used CUDA).
void require(int device);

struct DeviceInfo {
  std::string name;
  int compute_major, compute_minor, multiprocessors, memory_bus_bits;
  double clock_hz, memory_clock_hz;  ///< highest; memory moves bits twice per clock
  std::size_t memory_bytes, l2_bytes, shared_memory_per_block_bytes;
  int driver_version, runtime_version;
};
DeviceInfo device_info(int device);

/// Stream-ordered device memory from a pool of our own, kept for reuse until empty_cache() or until there is no other.
/// Throws DeviceError.
void* allocate(std::size_t bytes, int device, Stream stream);
/// Gives memory back in the order of `stream`, on which it was used.
void deallocate(void* p, int device, Stream stream) noexcept;
/// Gives back an array's memory, in the order of the legacy default stream, whatever goes on: any thread may drop an
/// array while another one captures a graph, and when the process ends. `exported`: others may still use it on streams
/// of theirs, so it is not used again before the whole device has been waited for, in a later call.
void deallocate_array(void* p, std::size_t bytes, int device, bool exported) noexcept;
/// Waits for all devices that kfusion has used; returns the bytes given back.
std::size_t empty_cache() noexcept;
/// Sets each of `bytes` bytes to `value`, ordered on `stream`.
void clear(void* p, std::size_t bytes, int device, Stream stream, int value = 0);

/// Copies between any two places of host and device memory, ordered on `stream`; returns before it is done only
/// where the runtime does.
void copy(void* to, const void* from, std::size_t bytes, int device, Stream stream);
void synchronize(int device, Stream stream);
void synchronize_device(int device);  ///< waits for all streams; throws what their work failed with
/// The device that a pointer of device memory belongs to.
int device_of(const void* p);
/// Work enqueued on `waiter` after this call starts after all work now on `on`.
void wait(Stream waiter, Stream on, int device);

/// Whether `stream` is being captured, and a number that no other stream of the process ever has.
bool is_capturing(int device, Stream stream);
std::uint64_t stream_number(int device, Stream stream);

/// Device memory of one call, optionally zero. In a graph that is being captured it is a node of that graph, which has
/// memory of its own for it: nothing that happens outside between two launches of the graph can touch it.
class Workspace {
 public:
  Workspace(std::size_t bytes, int device, Stream stream)
      : data_(allocate(bytes, device, stream)), device_(device), stream_(stream) {}
  Workspace(std::size_t bytes, int device, Stream stream, bool zeroed) : Workspace(bytes, device, stream) {
    if (zeroed) clear(data_, bytes, device, stream);
  }
  ~Workspace() { deallocate(data_, device_, stream_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }  ///< nullptr for no bytes

 private:
  void* data_;
  int device_;
  Stream stream_;
};

/// Zeros on the device for a kernel that leaves zeros again: the stream's own, so that nobody waits for them to be
/// cleared. Graphs that are being captured have some of their own (see Workspace), and so does each call on a stream
/// where kfusion has seen many others.
class Standing {
 public:
  Standing(std::size_t bytes, int device, Stream stream)
      : kept_(kept(bytes, device, stream)), own_(kept_ ? 0 : bytes, device, stream, true) {}

  std::byte* data() const { return kept_ ? kept_ : own_.data(); }  ///< nullptr for no bytes

 private:
  static std::byte* kept(std::size_t bytes, int device, Stream stream);

  std::byte* kept_;
  Workspace own_;
};

/// Times `enqueue` `repeats` times with events on the legacy default stream and returns microseconds. Before each:
/// the L2 is flushed if `cold`, then the GPU is kept busy while the host enqueues, so that launch latency of the host
/// is not counted. `enqueue` may throw (the exception passes through).
std::vector<double> time(const std::function<void()>& enqueue, int repeats, bool cold, int device);

/// Calls `enqueue` and waits for the device, between the marks that a profiler may wait for and stop at. `enqueue` may
/// throw (the exception passes through).
void profile(const std::function<void()>& enqueue, int device);

}  // namespace kfusion::cuda
