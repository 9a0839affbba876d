#include "host/cudnn.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "compiler/nvrtc_library.hpp"
#include "cpu/platform.hpp"
#include "host/runtime.hpp"

namespace kfusion::cudnn {
namespace {

// cuDNN's C interface, as far as it is used. Source of names, numbers and meanings: NVIDIA, cuDNN backend API
// documentation, and cudnn_graph.h of version 9.
using Handle = void*;
using Descriptor = void*;
enum DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngineConfiguration = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kOperationConvolution = 10,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17
};
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwiseType = 1,
  kConvolutionType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionAfter = 104,
  kConvolutionBefore = 105,
  kConvolutionAxes = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kPlanConfiguration = 401,
  kPlanHandle = 400,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardWindow = 702,
  kForwardWeight = 703,
  kForwardImage = 704,
  kForwardResult = 705,
  kMapOf = 750,
  kMapX = 751,
  kMapY = 752,
  kMapResult = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorExtents = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003
};
enum AttributeType : int {
  kHandleType = 0,
  kDataTypeType = 1,
  kBooleanType = 2,
  kInt64Type = 3,
  kFloatType = 4,
  kPointerType = 6,
  kConvolutionModeType = 7,
  kHeuristicsModeType = 8,
  kPointwiseModeType = 14,
  kDescriptorType = 15
};
constexpr int kFloat = 0, kHalf = 2, kBfloat16 = 9, kCrossCorrelation = 1, kHeuristicsA = 3;

struct Api {
  std::size_t (*version)();
  const char* (*error_string)(int status);
  void (*last_error)(char* text, std::size_t bytes);
  int (*create)(Handle* handle);
  int (*set_stream)(Handle handle, cudaStream_t stream);
  int (*create_descriptor)(int type, Descriptor* descriptor);
  int (*destroy_descriptor)(Descriptor descriptor);
  int (*set_attribute)(Descriptor descriptor, int name, int type, std::int64_t count, const void* elements);
  int (*get_attribute)(Descriptor descriptor, int name, int type, std::int64_t wanted, std::int64_t* count, void* to);
  int (*finalize)(Descriptor descriptor);
  int (*execute)(Handle handle, Descriptor plan, Descriptor pack);
};

void* open() {
  constexpr const char* kName = "libcudnn.so.9";
  if (void* loaded = cpu::loaded_library(kName)) return loaded;
  for (const auto& folder : compiler::python_packages())
    if (void* found = cpu::open_library((folder / "nvidia" / "cudnn" / "lib" / kName).c_str())) return found;
  return cpu::open_library(kName);
}

template <class F>
bool bind(void* library, F*& function, const char* name) {
  function = reinterpret_cast<F*>(cpu::find_symbol(library, name));
  return function != nullptr;
}

/// Nothing where there is no cuDNN 9.
const Api* load() {
  void* library = open();
  static Api api;
  const bool found = library && bind(library, api.version, "cudnnGetVersion") &&
                     bind(library, api.error_string, "cudnnGetErrorString") &&
                     bind(library, api.last_error, "cudnnGetLastErrorString") &&
                     bind(library, api.create, "cudnnCreate") && bind(library, api.set_stream, "cudnnSetStream") &&
                     bind(library, api.create_descriptor, "cudnnBackendCreateDescriptor") &&
                     bind(library, api.destroy_descriptor, "cudnnBackendDestroyDescriptor") &&
                     bind(library, api.set_attribute, "cudnnBackendSetAttribute") &&
                     bind(library, api.get_attribute, "cudnnBackendGetAttribute") &&
                     bind(library, api.finalize, "cudnnBackendFinalize") &&
                     bind(library, api.execute, "cudnnBackendExecute");
  return found ? &api : nullptr;
}

const Api* found() {
  const cpu::NoFork whole;
  static const Api* const api = load();
  return api;
}

constexpr const char* kExecutor = "cudnn";  ///< what plans do without where the library fails

const Api& cudnn() {
  if (const Api* api = found()) return *api;
  throw NoSuchKernel("kfusion: cuDNN 9 (libcudnn.so.9) was not found; pip install nvidia-cudnn-cu13", kExecutor);
}

/// Why the last call failed, by cuDNN's own words.
std::string why(int status) {
  std::array<char, 512> text{};
  cudnn().last_error(text.data(), text.size());
  return std::string(cudnn().error_string(status)) + (text[0] ? std::string(": ") + text.data() : "");
}

/// Whether a status says that the library never has a kernel for a recipe on such a device: those of 3000 on, but for
/// the driver, the runtime, or what else the library loads. Other reasons may pass, as memory that is short.
bool is_final(int status) {
  return status / 1000 == 3 && status != 3005 && status != 3006 && status != 3008 && status != 3009;
}

/// What fails while a plan is made ready to run: it can do without the kernel, or without the library.
void check(int status, const char* what, bool final) {
  if (status != 0)
    throw NoSuchKernel(std::string("kfusion: cuDNN: ") + what + " failed: " + why(status), final ? "" : kExecutor);
}
void check(int status, const char* what) { check(status, what, is_final(status)); }

class Owned {
 public:
  explicit Owned(DescriptorType type) { check(cudnn().create_descriptor(type, &d_), "making a descriptor"); }
  ~Owned() { cudnn().destroy_descriptor(d_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Descriptor get() const { return d_; }
  void set(Attribute name, AttributeType type, std::int64_t count, const void* elements) {
    check(cudnn().set_attribute(d_, name, type, count, elements), "describing a kernel");
  }
  void set(Attribute name, AttributeType type, int value) { set(name, type, 1, &value); }
  void set(Attribute name, float value) { set(name, kFloatType, 1, &value); }
  void set(Attribute name, std::int64_t value) { set(name, kInt64Type, 1, &value); }
  void set(Attribute name, const std::int64_t (&pair)[2]) { set(name, kInt64Type, 2, pair); }
  void set(Attribute name, const Extents& all) { set(name, kInt64Type, std::ssize(all), all.data()); }
  void set(Attribute name, const Owned& other) { set(name, kDescriptorType, 1, &other.d_); }
  void finalize() { check(cudnn().finalize(d_), "describing a kernel"); }
  int try_to_finalize() { return cudnn().finalize(d_); }

 private:
  Descriptor d_ = nullptr;
};
using OwnedPointer = std::unique_ptr<Owned>;
OwnedPointer make_descriptor(DescriptorType type) { return std::make_unique<Owned>(type); }

/// Handles that nobody uses, by device. Never destroyed: threads may still launch at exit.
struct Handles {
  cpu::ForkSafeMutex mutex;
  std::array<std::vector<Handle>, cuda::kMaxDevices> free;
};
Handles& handles() {
  static auto& handles = *new Handles;
  return handles;
}

/// A handle on the current device for one thread at a time, as each has one stream.
class Borrowed {
 public:
  explicit Borrowed(int device) : free_(handles().free[static_cast<std::size_t>(device)]) {
    {
      const std::lock_guard lock(handles().mutex);
      if (!free_.empty()) handle_ = free_.back(), free_.pop_back();
    }
    if (!handle_) check(cudnn().create(&handle_), "starting", false);
  }
  ~Borrowed() {
    const std::lock_guard lock(handles().mutex);
    free_.push_back(handle_);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Handle get() const { return handle_; }

 private:
  std::vector<Handle>& free_;
  Handle handle_ = nullptr;
};

int type_of(DType t) { return t == DType::kFloat16 ? kHalf : t == DType::kBFloat16 ? kBfloat16 : kFloat; }

class Made final : public Plan {
 public:
  Made(const Recipe& r, int device) : device_(device) {
    for (std::size_t i = 0; i < r.tensors.size(); ++i) add_tensor(r.tensors[i], static_cast<std::int64_t>(i) + 1);
    for (const Operation& o : r.operations) o.is_convolution ? add_convolution(o) : add_map(o);
    choose();
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const void* const* data, std::byte* workspace, Stream stream) const override {
    const cuda::UseDevice use(device_);
    const cuda::DuringCapture capture;  // the library loads its kernels when it first launches them
    const Borrowed handle(device_);
    check(cudnn().set_stream(handle.get(), cuda::handle(stream)), "choosing the stream");
    Owned pack(kVariantPack);
    pack.set(kPackIds, ids_);
    pack.set(kPackPointers, kPointerType, std::ssize(ids_), data);
    pack.set(kPackWorkspace, kPointerType, 1, &workspace);
    pack.finalize();
    check(cudnn().execute(handle.get(), plan_->get(), pack.get()), "running a convolution");
  }

 private:
  void add_tensor(const Tensor& t, std::int64_t id) {
    auto d = make_descriptor(kTensor);
    d->set(kTensorType, kDataTypeType, type_of(t.dtype));
    d->set(kTensorExtents, t.extents);
    d->set(kTensorStrides, t.strides);
    d->set(kTensorId, id);
    d->set(kTensorAlignment, std::int64_t{16});
    const bool yes = true;
    if (t.of == Tensor::Of::kBetween) d->set(kTensorIsVirtual, kBooleanType, 1, &yes);
    if (t.of == Tensor::Of::kNumber) d->set(kTensorIsByValue, kBooleanType, 1, &yes);
    d->finalize();
    if (t.of != Tensor::Of::kBetween) ids_.push_back(id);
    tensors_.push_back(std::move(d));
  }
  const Owned& tensor(int i) const { return *tensors_[static_cast<std::size_t>(i)]; }

  void add_convolution(const Operation& o) {
    auto window = make_descriptor(kConvolution);
    window->set(kConvolutionType, kDataTypeType, kFloat);
    window->set(kConvolutionMode, kConvolutionModeType, kCrossCorrelation);
    window->set(kConvolutionDilations, o.window.dilation);
    window->set(kConvolutionStrides, o.window.stride);
    window->set(kConvolutionBefore, o.window.padding);
    window->set(kConvolutionAfter, o.window.padding);
    window->set(kConvolutionAxes, std::int64_t{2});
    window->finalize();
    auto d = make_descriptor(kOperationConvolution);
    d->set(kForwardAlpha, 1.0f);
    d->set(kForwardBeta, 0.0f);
    d->set(kForwardWindow, *window);
    d->set(kForwardImage, tensor(o.x));
    d->set(kForwardWeight, tensor(o.y));
    d->set(kForwardResult, tensor(o.result));
    add(std::move(window), std::move(d));
  }

  void add_map(const Operation& o) {
    auto map = make_descriptor(kPointwise);
    map->set(kPointwiseMode, kPointwiseModeType, static_cast<int>(o.map));
    map->set(kPointwiseType, kDataTypeType, kFloat);
    map->finalize();
    auto d = make_descriptor(kOperationPointwise);
    d->set(kMapOf, *map);
    d->set(kMapX, tensor(o.x));
    if (o.y >= 0) d->set(kMapY, tensor(o.y));
    d->set(kMapResult, tensor(o.result));
    add(std::move(map), std::move(d));
  }

  void add(OwnedPointer what, OwnedPointer operation) {
    operation->finalize();
    operations_.push_back(operation->get());
    kept_.push_back(std::move(what)), kept_.push_back(std::move(operation));
  }

  /// Tries the second of the kernels that the heuristics propose first: it took 0.80 to 1 of the first one's time for
  /// six convolutions from 9 x 11 to 56 x 56 pixels (H100, cuDNN 9.19), and never more than 1.03 of the best of eight.
  void choose() {
    constexpr int kMost = 4, kOrder[] = {1, 0, 2, 3};
    const Borrowed borrowed(device_);
    const Handle handle = borrowed.get();
    auto graph = make_descriptor(kOperationGraph), heuristics = make_descriptor(kHeuristics);
    graph->set(kGraphHandle, kHandleType, 1, &handle);
    graph->set(kGraphOperations, kDescriptorType, std::ssize(operations_), operations_.data());
    graph->finalize();
    heuristics->set(kHeuristicsGraph, *graph);
    heuristics->set(kHeuristicsMode, kHeuristicsModeType, kHeuristicsA);
    std::vector<OwnedPointer> proposed;
    std::vector<Descriptor> results;
    for (int i = 0; i < kMost; ++i) {
      proposed.push_back(make_descriptor(kEngineConfiguration));
      results.push_back(proposed.back()->get());
    }
    std::int64_t count = 0;
    heuristics->finalize();
    check(cudnn().get_attribute(heuristics->get(), kHeuristicsResults, kDescriptorType, kMost, &count, results.data()),
          "asking for kernels");
    bool may_pass = false;
    for (const int i : kOrder)
      if (i < count && !plan_) may_pass |= !is_final(try_plan(*proposed[static_cast<std::size_t>(i)], handle));
    if (!plan_) throw NoSuchKernel("kfusion: cuDNN has no such kernel", may_pass ? kExecutor : "");
    kept_.push_back(std::move(graph)), kept_.push_back(std::move(heuristics));
    for (OwnedPointer& p : proposed) kept_.push_back(std::move(p));
  }

  /// The status, 0 for the plan that is taken.
  int try_plan(const Owned& configuration, Handle handle) {
    auto plan = make_descriptor(kExecutionPlan);
    plan->set(kPlanHandle, kHandleType, 1, &handle);
    plan->set(kPlanConfiguration, configuration);
    if (const int status = plan->try_to_finalize(); status != 0) return status;
    std::int64_t bytes = 0, count = 0;
    check(cudnn().get_attribute(plan->get(), kPlanWorkspace, kInt64Type, 1, &count, &bytes), "asking for memory");
    workspace_bytes_ = static_cast<std::size_t>(bytes);
    plan_ = std::move(plan);
    return 0;
  }

  int device_;
  std::vector<OwnedPointer> tensors_, kept_;
  std::vector<Descriptor> operations_;
  Extents ids_;  ///< of the tensors that have data
  OwnedPointer plan_;
  std::size_t workspace_bytes_ = 0;
};

/// Kernels by device and recipe. Never destroyed: threads may still run them at exit.
struct Known {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Made>> all;
  std::unordered_set<std::string> unsupported;  ///< recipes, after the compute capability
};
Known& known() {
  static auto& known = *new Known;
  return known;
}

std::string key_of(const Recipe& r, int number) { return std::to_string(number) + ' ' + r.text(); }

/// 90 for 9.0.
int compute_capability(int device) {
  using cuda::attribute;
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

}  // namespace

bool is_there() noexcept { return found() != nullptr; }

bool is_unsupported(const Recipe& r, int compute_capability) {
  Known& k = known();
  const std::lock_guard lock(k.mutex);
  return !k.unsupported.empty() && k.unsupported.contains(key_of(r, compute_capability));
}

std::shared_ptr<const Plan> make(const Recipe& r, int device) {
  const std::string key = key_of(r, device);
  Known& k = known();
  {
    const std::lock_guard lock(k.mutex);
    if (const auto found = k.all.find(key); found != k.all.end()) return found->second;
  }
  const cuda::UseDevice use(device);
  const cuda::DuringCapture capture;
  try {
    auto made = std::make_shared<const Made>(r, device);
    const std::lock_guard lock(k.mutex);
    return k.all.emplace(key, std::move(made)).first->second;
  } catch (const NoSuchKernel& failure) {
    const std::lock_guard lock(k.mutex);
    if (failure.without.empty()) k.unsupported.insert(key_of(r, compute_capability(device)));
    throw;
  }
}

}  // namespace kfusion::cudnn
