// Timing with events, free of the host's launch latency; marks for profilers.
#include <cuda_profiler_api.h>

#include <algorithm>

#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

constexpr unsigned kFirstSpinNs = 30'000, kMaxSpinNs = 20'000'000;
constexpr std::size_t kFlushOverL2 = 4;

/// One thread keeps the stream busy.
__global__ void spin(unsigned nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

/// Reads a buffer larger than L2, so that nothing of what was there is found again. Reads: lines left dirty would be
/// written back in the time of whatever comes next.
__global__ void flush(uint4* buffer, std::size_t size) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned any = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += step) {
    const uint4 v = buffer[i];
    any |= v.x | v.y | v.z | v.w;
  }
  if (any) buffer[0].x = 1;  // never: the buffer is zero, but the compiler does not know
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "creating an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() { check(cudaEventRecord(event_, nullptr), "recording an event"); }
  bool complete() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return cudaGetLastError(), false;
    check(status, "asking for an event");
    return true;
  }
  double microseconds_since(const Event& start) const {
    check(cudaEventSynchronize(event_), "waiting for an event");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "reading an event");
    return milliseconds * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

const void* any_kernel() { return reinterpret_cast<const void*>(&spin); }

std::vector<double> time(const std::function<void()>& enqueue, int repeats, bool cold, int device) {
  const UseDevice use(device);
  const std::size_t flush_bytes = cold ? kFlushOverL2 * device_info(device).l2_bytes : 0;
  const Workspace buffer(flush_bytes, device, 0, true);
  Event start, stop;
  unsigned spin_ns = kFirstSpinNs;
  std::vector<double> times_us;
  enqueue();  // loads modules and fills caches of the host
  while (static_cast<int>(times_us.size()) < repeats) {
    if (cold) {
      flush<<<1024, 256>>>(reinterpret_cast<uint4*>(buffer.data()), flush_bytes / sizeof(uint4));
      check(cudaGetLastError(), "flushing the L2 cache");
    }
    spin<<<1, 1>>>(spin_ns);
    check(cudaGetLastError(), "keeping the device busy");
    start.record();
    enqueue();
    stop.record();
    const bool late = start.complete();  // the device waited for the host: its latency is in the sample
    const double us = stop.microseconds_since(start);
    if (late && spin_ns < kMaxSpinNs) {
      spin_ns = std::min(2 * spin_ns, kMaxSpinNs);
    } else {
      times_us.push_back(us);  // beyond the limit `enqueue` itself waits for the device, and that is what it costs
    }
  }
  return times_us;
}

void profile(const std::function<void()>& enqueue, int device) {
  const UseDevice use(device);
  synchronize_device(device);  // what came before is not part of it
  check(cudaProfilerStart(), "starting the profiler");
  enqueue();
  synchronize_device(device);
  check(cudaProfilerStop(), "stopping the profiler");
}

}  // namespace kfusion::cuda
