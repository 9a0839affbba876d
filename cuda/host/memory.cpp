// Device memory in stream order, copies and events.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <mutex>
#include <vector>

#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

/// A pool of our own, so that its settings do not change those of other libraries in the process. Pools live until the
/// process ends: at exit the driver may be gone before any destructor of ours.
struct Pool {
  std::once_flag once;
  std::atomic<cudaMemPool_t> handle{nullptr};  // null where the device has no pools
};
std::array<Pool, kMaxDevices> pools;

cudaMemPool_t create_pool(int device) {
  int supported = 0;
  check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device), "asking for memory pools");
  if (!supported) return nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "creating a memory pool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "configuring a memory pool");
  return pool;
}

cudaMemPool_t pool_of(int device) {
  Pool& pool = pools[static_cast<std::size_t>(device)];
  std::call_once(pool.once, [&] { pool.handle = create_pool(device); });
  return pool.handle;
}

std::uint64_t reserved_bytes(cudaMemPool_t pool) {
  std::uint64_t bytes = 0;
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) cudaGetLastError();
  return bytes;
}

}  // namespace

void* allocate(std::size_t bytes, int device, Stream stream) {
  if (bytes == 0) return nullptr;
  const UseDevice use(device);
  const cudaMemPool_t pool = pool_of(device);
  void* p = nullptr;
  const cudaError_t status = pool ? cudaMallocFromPoolAsync(&p, bytes, pool, handle(stream)) : cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw DeviceError("kfusion: out of memory on cuda:" + std::to_string(device) + ": " + std::to_string(bytes) +
                      " bytes wanted; kfusion.empty_cache() gives back what kfusion keeps for reuse");
  }
  check(status, "allocating device memory");
  return p;
}

void deallocate(void* p, int device, Stream stream) noexcept {
  if (!p || forked_after_use()) return;
  try {
    const UseDevice use(device);
    const cudaError_t status = pool_of(device) ? cudaFreeAsync(p, handle(stream)) : cudaFree(p);
    if (status != cudaSuccess) cudaGetLastError();  // the process is ending, or a graph is being captured: it leaks
  } catch (...) {
  }
}

std::size_t empty_cache() noexcept {
  if (forked_after_use()) return 0;
  std::size_t freed = 0;
  for (std::size_t device = 0; device < pools.size(); ++device) {
    const cudaMemPool_t pool = pools[device].handle;
    if (!pool) continue;
    finish_device(static_cast<int>(device));  // what is freed in stream order is free only when the stream is there
    const std::uint64_t before = reserved_bytes(pool);
    if (cudaMemPoolTrimTo(pool, 0) != cudaSuccess) cudaGetLastError();
    const std::uint64_t after = reserved_bytes(pool);
    if (after < before) freed += before - after;
  }
  return freed;
}

void clear(void* p, std::size_t bytes, int device, Stream stream, int value) {
  if (bytes == 0) return;
  const UseDevice use(device);
  check(cudaMemsetAsync(p, value, bytes, handle(stream)), "clearing memory");
}

void copy(void* to, const void* from, std::size_t bytes, int device, Stream stream) {
  if (bytes == 0) return;
  const UseDevice use(device);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), "copying");
}

void synchronize(int device, Stream stream) {
  const UseDevice use(device);
  check(cudaStreamSynchronize(handle(stream)), "waiting for a stream");
}

void synchronize_device(int device) {
  const UseDevice use(device);
  check(cudaDeviceSynchronize(), "waiting for a device");
}

void finish_device(int device) noexcept {
  if (forked_after_use()) return;
  try {
    synchronize_device(device);
  } catch (...) {
  }
}

int device_of(const void* p) {
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, p), "asking where memory lies");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw DeviceError("kfusion: an array that offers the CUDA array interface points to memory that is on no GPU");
  return attributes.device;
}

namespace {
bool capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(handle(stream), &status);
  if (error == cudaErrorStreamCaptureImplicit) return cudaGetLastError(), false;  // the legacy stream beside a capture
  check(error, "asking whether a stream is capturing");
  return status != cudaStreamCaptureStatusNone;
}
}  // namespace

namespace {
constexpr std::size_t kMostKept = 64, kLeastKeptBytes = std::size_t{64} << 10;

struct Kept {
  int device;
  unsigned long long stream;  ///< not its handle, which a later stream may have as well
  std::size_t bytes;
  std::byte* data;
};
}  // namespace

std::byte* Standing::kept(std::size_t bytes, int device, Stream stream) {
  static auto& all = *new std::vector<Kept>;  // neither is destroyed: threads may still launch at exit
  static auto& mutex = *new std::mutex;
  if (bytes == 0) return nullptr;
  const UseDevice use(device);
  if (capturing(stream)) return nullptr;
  unsigned long long id = 0;
  check(cudaStreamGetId(handle(stream), &id), "asking which stream it is");
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find_if(
      all, [&](const Kept& k) { return k.device == device && k.stream == id && k.bytes >= bytes; });
  if (found != all.end()) return found->data;
  if (all.size() == kMostKept) return nullptr;
  const std::size_t room = std::max(std::bit_ceil(bytes), kLeastKeptBytes);
  auto* data = static_cast<std::byte*>(allocate(room, device, stream));
  clear(data, room, device, stream);
  all.push_back({device, id, room, data});
  return data;
}

void wait(Stream waiter, Stream on, int device) {
  if (waiter == on) return;
  const UseDevice use(device);
  // Into or out of a graph that is being captured there is no order: its work runs when somebody launches it, and that
  // somebody orders the launches.
  if (capturing(waiter) != capturing(on)) return;
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  cudaError_t status = cudaEventRecord(event, handle(on));
  if (status == cudaSuccess) status = cudaStreamWaitEvent(handle(waiter), event, 0);
  cudaEventDestroy(event);  // released when the stream has passed it
  check(status, "ordering two streams");
}

}  // namespace kfusion::cuda
