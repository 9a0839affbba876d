// cuDNN without a GPU, as far as cuda/host/cudnn.cpp asks it for kernels: it fails where a test says so, and knows who
// uses its handles. Built into one library with that file and fake_cuda.cpp; test_cuda_host.py calls it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "compiler/nvrtc_library.hpp"
#include "cpu/platform.hpp"
#include "host/cudnn.hpp"

namespace {

constexpr int kHeuristics = 4, kPlan = 5, kStart = 100, kDescribe = 101;  // the first ones: types of descriptors
constexpr std::int64_t kWorkspace = 1024;

struct Handle {
  std::atomic<bool> used = false;
};

std::map<int, std::deque<int>> statuses;  // of the next calls, by kStart, kDescribe or the type that is finalized
std::int64_t proposed = 4;
std::atomic<int> handles = 0, shared = 0;  // shared: calls with a handle that another thread used
std::string said;

int status_of(int what) {
  auto& all = statuses[what];
  if (all.empty()) return 0;
  const int status = all.front();
  all.pop_front();
  return status;
}

/// The library loads what it needs when it needs it: not beside a capture, but in relaxed mode.
int loaded() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, nullptr) == cudaSuccess ? 0 : 5000;
}

}  // namespace

namespace kfusion {
namespace compiler {
const std::vector<std::filesystem::path>& python_packages() {
  static const std::vector<std::filesystem::path> none;
  return none;
}
}  // namespace compiler
namespace cpu {
NoFork::NoFork() {}
NoFork::~NoFork() {}
void ForkSafeMutex::lock() { mutex_.lock(); }
void ForkSafeMutex::unlock() { mutex_.unlock(); }
void in_forked_child(void (*)()) {}
void* open_library(const char*) noexcept { return nullptr; }
void* loaded_library(const char*) noexcept {
  Dl_info here;
  return dladdr(reinterpret_cast<void*>(&loaded), &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
}
void* find_symbol(void* library, const char* name) noexcept { return dlsym(library, name); }
}  // namespace cpu
}  // namespace kfusion

extern "C" {

std::size_t cudnnGetVersion() { return 90000; }
const char* cudnnGetErrorString(int) { return "refused"; }
void cudnnGetLastErrorString(char* text, std::size_t bytes) { std::strncpy(text, "for a reason", bytes); }
int cudnnCreate(Handle** handle) {
  if (const int status = status_of(kStart)) return status;
  return *handle = new Handle, ++handles, loaded();
}
int cudnnSetStream(Handle* handle, void*) {
  if (handle->used.exchange(true)) ++shared;
  return 0;
}
int cudnnBackendCreateDescriptor(int type, int** descriptor) { return *descriptor = new int(type), 0; }
int cudnnBackendDestroyDescriptor(int* descriptor) { return delete descriptor, 0; }
int cudnnBackendSetAttribute(int*, int, int, std::int64_t, const void*) { return status_of(kDescribe); }
int cudnnBackendGetAttribute(int* descriptor, int, int, std::int64_t, std::int64_t* count, void* to) {
  *count = *descriptor == kHeuristics ? proposed : 1;
  if (*descriptor == kPlan) std::memcpy(to, &kWorkspace, sizeof kWorkspace);
  return 0;
}
int cudnnBackendFinalize(int* descriptor) {
  const int status = status_of(*descriptor);
  return status != 0 || *descriptor != kPlan ? status : loaded();
}
int cudnnBackendExecute(Handle* handle, int*, int*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  handle->used = false;
  return loaded();
}

// ---- for the tests --------------------------------------------------------------------------------------------------

void fake_fail(int what, int status) { statuses[what].push_back(status); }
void fake_proposes(int count) { proposed = count; }
int fake_handles() { return handles; }
int fake_shared() { return shared; }
const char* fake_said() { return said.c_str(); }

using namespace kfusion;

static cudnn::Recipe recipe_of(int images) {
  const Extents image{images, 8, 9, 9}, weight{8, 8, 1, 1};
  const auto tensor = [](cudnn::Tensor::Of of, const Extents& extents) {
    return cudnn::Tensor{of, DType::kFloat16, extents, extents};  // no one looks at the strides
  };
  using enum cudnn::Tensor::Of;
  cudnn::Recipe r;
  r.tensors = {tensor(kArray, image), tensor(kArray, weight), tensor(kBetween, image), tensor(kArray, image)};
  cudnn::Operation convolution, relu;
  convolution.is_convolution = true, convolution.x = 0, convolution.y = 1, convolution.result = 2;
  relu.map = cudnn::Map::kRelu, relu.x = 2, relu.result = 3;
  r.operations = {convolution, relu};
  return r;
}

/// The kernel's workspace; -1 where plans do without the library, -2 where they do without the kernel.
std::int64_t host_make(int images) try {
  return static_cast<std::int64_t>(cudnn::make(recipe_of(images), 0)->workspace_bytes());
} catch (const NoSuchKernel& failure) {
  said = failure.what();
  return failure.without == "cudnn" ? -1 : failure.without.empty() ? -2 : -3;
}
bool host_is_unsupported(int images, int compute_capability) {
  return cudnn::is_unsupported(recipe_of(images), compute_capability);
}
void host_run(int images) {
  const void* const data[] = {&said, &said, &said};
  cudnn::make(recipe_of(images), 0)->run(data, nullptr, 0);
}

}  // extern "C"
