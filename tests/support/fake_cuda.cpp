// A CUDA runtime without a GPU, as far as cuda/host/ asks for memory and images: what it refuses while a graph is being
// captured, and what memory it has. Built into one library with the files that it is for; test_cuda_host.py calls it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <string>

#include "host/load.hpp"
#include "host/runtime.hpp"

namespace {

/// A capture of some other thread, in the default mode.
enum class Capture { kNone, kOnNonBlockingStream, kOnBlockingStream };

struct Block {
  std::size_t bytes;
  bool given_back, finished;  // given_back: in the pool, for blocks of this size; finished: the device was waited for
};

struct {
  Capture capture = Capture::kNone;
  bool broken = false;                                       // the capture: by a call that it allows no thread
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;  // of the only thread
  std::size_t capacity = 1 << 30, images = 0, waits = 0;
  bool has_kernel = true;
  std::map<std::size_t, Block> blocks;  // by address
  std::size_t next = 4096;
} fake;

std::size_t used() {
  std::size_t bytes = 0;
  for (const auto& [at, block] : fake.blocks) bytes += block.bytes;
  return bytes;
}

cudaError_t broken(cudaError_t error) {
  fake.broken = true;
  return error;
}

/// A call that could enter a graph and does not: refused beside a capture, but in relaxed mode.
cudaError_t unsafe() {
  const bool refused = fake.capture != Capture::kNone && fake.mode != cudaStreamCaptureModeRelaxed;
  return refused ? broken(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

/// Work on a stream. The legacy one waits for all blocking streams.
cudaError_t enqueue(cudaStream_t stream) {
  const bool legacy = stream == nullptr || stream == cudaStreamLegacy;
  return legacy && fake.capture == Capture::kOnBlockingStream ? broken(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

cudaError_t take(void** p, std::size_t bytes) {
  const auto again = [&](const auto& b) { return b.second.given_back && b.second.bytes == bytes; };
  if (const auto found = std::ranges::find_if(fake.blocks, again); found != fake.blocks.end()) {
    found->second.given_back = false;
    *p = reinterpret_cast<void*>(found->first);
    return cudaSuccess;
  }
  if (used() + bytes > fake.capacity) return cudaErrorMemoryAllocation;
  *p = reinterpret_cast<void*>(fake.next);
  fake.blocks[fake.next] = {bytes, false, false};
  fake.next += bytes;
  return cudaSuccess;
}

cudaError_t give_back(void* p) {
  const auto found = fake.blocks.find(reinterpret_cast<std::size_t>(p));
  if (found == fake.blocks.end() || found->second.given_back) return cudaErrorInvalidValue;
  found->second.given_back = true, found->second.finished = false;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(fake.mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  const bool legacy = stream == nullptr || stream == cudaStreamLegacy;
  return legacy && fake.capture == Capture::kOnBlockingStream ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (fake.capture != Capture::kNone) return broken(cudaErrorStreamCaptureUnsupported);
  for (auto& [at, block] : fake.blocks) block.finished = true;
  ++fake.waits;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return enqueue(stream); }

cudaError_t cudaMalloc(void** p, std::size_t bytes) { return unsafe() ? unsafe() : take(p, bytes); }
cudaError_t cudaFree(void* p) { return unsafe() ? unsafe() : give_back(p); }
cudaError_t cudaMallocFromPoolAsync(void** p, std::size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  const cudaError_t error = enqueue(stream);
  return error ? error : take(p, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const cudaError_t error = enqueue(stream);
  return error ? error : give_back(p);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(&fake);
  return unsafe();
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return unsafe(); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *static_cast<std::uint64_t*>(value) = used();
  return unsafe();
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  if (unsafe()) return unsafe();
  std::erase_if(fake.blocks, [](const auto& b) { return b.second.given_back && b.second.finished; });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = fake.capacity, *free = fake.capacity - used();
  return unsafe();
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(&fake.images);
  ++fake.images;
  return unsafe();
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  --fake.images;
  return unsafe();
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char*) {
  *kernel = reinterpret_cast<cudaKernel_t>(&fake);
  return fake.has_kernel ? cudaSuccess : cudaErrorSymbolNotFound;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return unsafe();
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetParamInfo(const void*, std::size_t, std::size_t*, std::size_t*) { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake"; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) { return enqueue(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) { return enqueue(stream); }
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* id) { return *id = 1, cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t s) { return enqueue(s); }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t s) { return enqueue(s); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) { return cudaSuccess; }

// ---- for the tests --------------------------------------------------------------------------------------------------

void fake_capture(int capture) { fake.capture = static_cast<Capture>(capture); }
bool fake_is_broken() { return fake.broken; }
std::size_t fake_used() { return used(); }
std::size_t fake_waits() { return fake.waits; }
std::size_t fake_images() { return fake.images; }
void fake_has_kernel(bool has) { fake.has_kernel = has; }

/// The address, or 0 with the error's text in `error`.
std::size_t host_allocate(std::size_t bytes, std::size_t stream, char* error, std::size_t room) {
  try {
    return reinterpret_cast<std::size_t>(kfusion::cuda::allocate(bytes, 0, stream));
  } catch (const std::exception& e) {
    return std::string(e.what()).copy(error, room - 1), 0;
  }
}
void host_deallocate_array(std::size_t p, std::size_t bytes, bool exported) {
  kfusion::cuda::deallocate_array(reinterpret_cast<void*>(p), bytes, 0, exported);
}
std::size_t host_empty_cache() { return kfusion::cuda::empty_cache(); }
bool host_load() {
  try {
    return kfusion::cuda::load("an image", "entry", 0).kernel != nullptr;
  } catch (const kfusion::DeviceError&) {
    return false;
  }
}
}

namespace kfusion {
namespace compiler {
std::string nvrtc_package(int) { return "a package"; }
}  // namespace compiler
namespace cuda {
const void* any_kernel() { return &fake; }
}  // namespace cuda
}  // namespace kfusion
