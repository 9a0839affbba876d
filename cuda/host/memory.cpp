// Device memory in stream order, copies and events.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <mutex>
#include <utility>
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
  const DuringCapture capture;
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

/// Memory of arrays that are gone. To give it back takes a call of the runtime, and any such call can break a capture
/// of somebody else's: so the next allocation does it, not the array's destructor.
class Retired {
 public:
  struct Block {
    void* data;
    std::size_t bytes;
  };

  void add(const Block& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(block);
    bytes_ += std::max(block.bytes, kLeastBytes);
  }
  std::vector<Block> take() {
    const std::lock_guard lock(mutex_);
    bytes_ = 0;
    return std::exchange(blocks_, {});
  }
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kLeastBytes = 4096;  // that a block counts, so that there are not too many

  std::mutex mutex_;
  std::vector<Block> blocks_;
  std::atomic<std::size_t> bytes_ = 0;
};
using RetiredByDevice = std::array<Retired, kMaxDevices>;
auto& dropped = *new RetiredByDevice;  ///< free in the order of the legacy stream
auto& retired = *new RetiredByDevice;  ///< free once the whole device has been waited for: other libraries had it
// Neither is destroyed: threads may still drop arrays at exit.
constexpr std::size_t kMostRetiredBytes = std::size_t{256} << 20;

std::uint64_t reserved_bytes(cudaMemPool_t pool) {
  std::uint64_t bytes = 0;
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) cudaGetLastError();
  return bytes;
}

bool capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(handle(stream), &status);
  if (error == cudaErrorStreamCaptureImplicit) return cudaGetLastError(), false;  // the legacy stream beside a capture
  check(error, "asking whether a stream is capturing");
  return status != cudaStreamCaptureStatusNone;
}

/// Whether somebody captures a stream that the legacy default stream waits for: to use that one would break the
/// capture.
bool legacy_stream_is_closed(int device) {
  const UseDevice use(device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool open = cudaStreamIsCapturing(cudaStreamLegacy, &status) == cudaSuccess;
  if (!open) cudaGetLastError();
  return !open;
}

/// Whether the device can be waited for without breaking a capture that can be seen from here: on `stream`, or on one
/// that the legacy default stream waits for. Captures on other streams cannot be seen.
bool may_wait(int device, Stream stream) { return !capturing(stream) && !legacy_stream_is_closed(device); }

/// Waits for a device; returns whether that worked.
bool finish_device(int device) {
  const UseDevice use(device);
  const bool done = cudaDeviceSynchronize() == cudaSuccess;
  if (!done) cudaGetLastError();  // what failed is left for the next call
  return done;
}

void free_dropped(int device, Stream stream) {
  Retired& all = dropped[static_cast<std::size_t>(device)];
  if (all.bytes() == 0 || !may_wait(device, stream)) return;
  for (const Retired::Block& block : all.take()) deallocate(block.data, device, 0);
}

/// Waits for a device, and gives back what waits for that.
void free_retired(int device, Stream stream) {
  if (!may_wait(device, stream)) return;
  Retired& all = retired[static_cast<std::size_t>(device)];
  const std::vector<Retired::Block> blocks = all.take();  // before the wait, which is for what is there now
  const bool finished = !blocks.empty() && finish_device(device);
  for (const Retired::Block& block : blocks) {
    if (finished)
      deallocate(block.data, device, 0);
    else
      all.add(block);
  }
}

cudaError_t try_allocate(void** p, std::size_t bytes, int device, Stream stream) {
  const cudaMemPool_t pool = pool_of(device);
  const cudaError_t status = pool ? cudaMallocFromPoolAsync(p, bytes, pool, handle(stream)) : cudaMalloc(p, bytes);
  if (status == cudaErrorMemoryAllocation) cudaGetLastError();
  return status;
}

[[noreturn]] void throw_out_of_memory(std::size_t bytes, int device) {
  const DuringCapture capture;
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  throw DeviceError("kfusion: out of memory on cuda:" + std::to_string(device) + ": " + std::to_string(bytes) +
                    " bytes wanted, " + std::to_string(free) + " of " + std::to_string(total) +
                    " are free; what kfusion keeps for reuse has been given back");
}

/// Gives what the pool of a device keeps for reuse back to the system. Returns how many bytes that were.
std::size_t shrink(int device, Stream stream) {
  const UseDevice use(device);
  const DuringCapture capture;
  free_dropped(device, stream);
  free_retired(device, stream);
  if (may_wait(device, stream))
    finish_device(device);  // what is freed in stream order is free when the stream is there
  const cudaMemPool_t pool = pools[static_cast<std::size_t>(device)].handle;
  if (!pool) return 0;
  const std::uint64_t before = reserved_bytes(pool);
  if (cudaMemPoolTrimTo(pool, 0) != cudaSuccess) cudaGetLastError();
  const std::uint64_t after = reserved_bytes(pool);
  return after < before ? before - after : 0;
}

}  // namespace

void* allocate(std::size_t bytes, int device, Stream stream) {
  if (bytes == 0) return nullptr;
  const UseDevice use(device);
  free_dropped(device, stream);
  if (retired[static_cast<std::size_t>(device)].bytes() > kMostRetiredBytes) free_retired(device, stream);
  void* p = nullptr;
  cudaError_t status = try_allocate(&p, bytes, device, stream);
  if (status == cudaErrorMemoryAllocation) {
    shrink(device, stream);
    status = try_allocate(&p, bytes, device, stream);
  }
  if (status == cudaErrorMemoryAllocation) throw_out_of_memory(bytes, device);
  check(status, "allocating device memory");
  return p;
}

void deallocate(void* p, int device, Stream stream) noexcept {
  if (!p || is_over()) return;
  try {
    const UseDevice use(device);
    const cudaError_t status = pool_of(device) ? cudaFreeAsync(p, handle(stream)) : cudaFree(p);
    if (status != cudaSuccess) cudaGetLastError();  // work has failed, and no call succeeds any more: it leaks
  } catch (...) {
  }
}

void deallocate_array(void* p, std::size_t bytes, int device, bool exported) noexcept {
  if (!p || is_over()) return;
  try {
    (exported ? retired : dropped)[static_cast<std::size_t>(device)].add({p, bytes});
  } catch (...) {  // it leaks
  }
}

std::size_t empty_cache() noexcept {
  std::size_t freed = 0;
  for (int device = 0; device < kMaxDevices && !is_over(); ++device) {
    if (!pools[static_cast<std::size_t>(device)].handle) continue;
    try {
      freed += shrink(device, 0);
    } catch (...) {  // another device may still have something
    }
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

int device_of(const void* p) {
  cudaPointerAttributes attributes;
  check(cudaPointerGetAttributes(&attributes, p), "asking where memory lies");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw DeviceError("kfusion: an array that offers the CUDA array interface points to memory that is on no GPU");
  return attributes.device;
}

namespace {
constexpr std::size_t kMostKept = 64, kLeastKeptBytes = std::size_t{64} << 10;

struct Kept {
  int device;
  unsigned long long stream;  ///< not its handle, which a later stream may have as well
  std::size_t bytes;
  std::byte* data;
};
}  // namespace

bool is_capturing(int device, Stream stream) {
  const UseDevice use(device);
  return capturing(stream);
}

std::uint64_t stream_number(int device, Stream stream) {
  const UseDevice use(device);
  unsigned long long id = 0;
  check(cudaStreamGetId(handle(stream), &id), "asking which stream it is");
  return id;
}

std::byte* Standing::kept(std::size_t bytes, int device, Stream stream) {
  static auto& all = *new std::vector<Kept>;  // neither is destroyed: threads may still launch at exit
  static auto& mutex = *new std::mutex;
  if (bytes == 0) return nullptr;
  const UseDevice use(device);
  if (capturing(stream)) return nullptr;
  const std::uint64_t id = stream_number(device, stream);
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find_if(
      all, [&](const Kept& k) { return k.device == device && k.stream == id && k.bytes >= bytes; });
  if (found != all.end()) return found->data;
  if (all.size() == kMostKept) return nullptr;
  const std::size_t room = std::max(std::bit_ceil(bytes), kLeastKeptBytes);
  all.reserve(kMostKept);
  auto* data = static_cast<std::byte*>(allocate(room, device, stream));
  try {
    clear(data, room, device, stream);
  } catch (...) {
    deallocate(data, device, stream);
    throw;
  }
  all.push_back({device, id, room, data});
  return data;
}

void wait(Stream waiter, Stream on, int device) {
  if (waiter == on) return;
  const UseDevice use(device);
  // Nothing orders work inside a graph that is being captured with work outside: it runs when somebody launches the
  // graph, and they order the launches.
  if (capturing(waiter) != capturing(on)) return;
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  cudaError_t status = cudaEventRecord(event, handle(on));
  if (status == cudaSuccess) status = cudaStreamWaitEvent(handle(waiter), event, 0);
  cudaEventDestroy(event);  // released when the stream has passed it
  check(status, "ordering two streams");
}

}  // namespace kfusion::cuda
