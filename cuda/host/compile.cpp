#include "host/compile.hpp"

#include <algorithm>
#include <array>
#include <future>
#include <mutex>
#include <semaphore>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unordered_map>

#include "codegen/generate.hpp"
#include "compiler/image.hpp"
#include "compiler/prebuilt.hpp"
#include "cpu/platform.hpp"
#include "host/load.hpp"
#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

codegen::Target ask_for_target(int device) {
  const Limits& l = limits(device);
  codegen::Target target;
  target.compute_major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  target.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  target.multiprocessors = l.multiprocessors;
  target.shared_bytes = l.shared_bytes;
  target.l2_bytes = l.l2_bytes;
  target.clusters = l.clusters;
  return target;
}

Function build(const std::string& source, const std::string& entry, int device, bool own) {
  const codegen::Target& t = target(device);
  const compiler::Program program{source, entry, codegen::embedded_headers()};
  const compiler::Architecture architecture{t.compute_major, t.compute_minor, own};
  if (own) return load(compiler::image(program, architecture), entry, device);
  if (const auto made = compiler::prebuilt(program, architecture)) return load(made->image, made->entry, device);
  return load(compiler::image(program, architecture), entry, device);
}

}  // namespace

const codegen::Target& target(int device) {
  static std::array<codegen::Target, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> once;
  require(device);
  const auto i = static_cast<std::size_t>(device);
  std::call_once(once[i], [&] { known[i] = ask_for_target(device); });
  return known[i];
}

/// A kernel's place in memory, filled by a thread that the first who wanted it has started, while others wait.
struct Compiling::Making {
  std::string key;
  std::shared_future<Function> function;
};

namespace {

/// Kernels by device and text. Never destroyed: threads may still launch at exit.
struct Known {
  cpu::ForkSafeMutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Compiling::Making>> all;
};
Known& known() {
  static auto& known = *new Known;
  return known;
}

/// No more at once than there are cores.
std::counting_semaphore<>& cores() {
  static auto& cores = *new std::counting_semaphore<>(std::max(1U, std::thread::hardware_concurrency()));
  return cores;
}

Function built(const std::string& source, const std::string& entry, int device, bool own) {
  const UseDevice use(device);
  return build(source, entry, device, own);
}

std::shared_future<Function> started(const std::string& source, const std::string& entry, int device, bool own) {
  const auto make = [=] {
    cores().acquire();
    struct Release {
      ~Release() { cores().release(); }
    } const release;
    return built(source, entry, device, own);
  };
  try {
    return std::async(std::launch::async, make).share();
  } catch (const std::system_error&) {  // no thread is to be had: whoever waits compiles
    return std::async(std::launch::deferred, built, source, entry, device, own).share();
  }
}

}  // namespace

Compiling::Compiling(const std::string& source, const std::string& entry, int device, bool own) {
  require(device);
  std::string key = std::to_string(device) + ' ' + entry + '\n' + source;
  const std::lock_guard lock(known().mutex);
  auto& place = known().all[key];
  if (!place) place = std::make_shared<Making>(std::move(key), started(source, entry, device, own));
  making_ = place;
}

Compiling::Compiling(Compiling&&) noexcept = default;
Compiling::~Compiling() = default;

const Function& Compiling::get() {
  try {
    return making_->function.get();
  } catch (...) {
    const std::lock_guard lock(known().mutex);
    const auto place = known().all.find(making_->key);
    if (place != known().all.end() && place->second == making_) known().all.erase(place);
    throw;
  }
}

const Function& compile(const std::string& source, const std::string& entry, int device, bool own) {
  return Compiling(source, entry, device, own).get();
}

namespace {

/// A launch as the runtime takes it.
struct Configuration {
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{};

  Configuration(const codegen::Launch& l, const Function& function, const Limits& device, Stream stream) {
    config.gridDim = dim3(l.grid[0], l.grid[1], l.grid[2]);
    config.blockDim = dim3(l.block[0], l.block[1], l.block[2]);
    config.dynamicSmemBytes = l.shared_bytes;
    config.stream = handle(stream);
    config.attrs = attributes;
    if (l.cluster > 1) add(cudaLaunchAttributeClusterDimension).clusterDim = {l.cluster, 1, 1};
    if (l.cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
    if (l.early && function.waits && device.early_kernels)
      add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

 private:
  cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = id;
    return a.val;
  }
};

/// Blocks of `l` that run at once.
int resident_blocks(const Function& function, const codegen::Launch& l, int device) {
  int count = 0;
  if (l.cluster == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, function.kernel,
                                                        static_cast<int>(l.block[0] * l.block[1]), l.shared_bytes),
          "asking for a kernel's occupancy");
    return count * limits(device).multiprocessors;
  }
  const Configuration configuration(l, function, limits(device), 0);
  check(cudaOccupancyMaxActiveClusters(&count, function.kernel, &configuration.config),
        "asking for a kernel's occupancy");
  return count * static_cast<int>(l.cluster);
}

}  // namespace

codegen::Launch fitted(const Function& function, const codegen::Launch& launch, int device) {
  codegen::Launch l = launch;
  if (!l.resident || l.grid[0] == 0) return l;
  const UseDevice use(device);
  const int most = resident_blocks(function, l, device);
  if (most == 0)
    throw std::runtime_error("kfusion: a kernel of clusters of " + std::to_string(l.cluster) +
                             " blocks finds no room for one of them on this device");
  l.grid[0] = std::min(l.grid[0], static_cast<unsigned>(most));
  return l;
}

void launch(const Function& function, const codegen::Launch& l, const void* parameters, std::size_t bytes, int device,
            Stream stream) {
  if (bytes < function.parameter_bytes)
    throw std::logic_error("kfusion: a generated kernel was given too few parameters");
  if (l.grid[0] == 0 || l.grid[1] == 0 || l.grid[2] == 0) return;
  const UseDevice use(device);
  const Configuration configuration(l, function, limits(device), stream);
  void* arguments[] = {const_cast<void*>(parameters)};
  check(cudaLaunchKernelExC(&configuration.config, function.kernel, arguments), "launching a generated kernel");
}

}  // namespace kfusion::cuda
