// Launching, alone and in clusters, and the questions about occupancy that a launch depends on.
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

/// `attribute` must live as long as the result.
cudaLaunchConfig_t configuration(const Launch& l, cudaLaunchAttribute& attribute, unsigned blocks, unsigned grid_y,
                                 Stream stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, grid_y);
  config.blockDim = dim3(static_cast<unsigned>(l.threads));
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = handle(stream);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(l.blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = l.blocks > 1 ? 1 : 0;
  return config;
}

/// More needs a permission.
constexpr std::size_t kUsualSharedBytes = 48 << 10;

void allow_large_clusters(const void* kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "allowing large clusters");
}

int query_resident_teams(const Launch& l, int device) {
  int teams = 0;
  if (l.shared_bytes > kUsualSharedBytes) {
    check(cudaFuncSetAttribute(l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits(device).shared_bytes),
          "allowing more shared memory");
  }
  if (l.blocks > 1) {
    if (l.blocks > 8) allow_large_clusters(l.kernel);
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configuration(l, attribute, static_cast<unsigned>(l.blocks), 1, 0);
    check(cudaOccupancyMaxActiveClusters(&teams, l.kernel, &config), "asking for the kernel's occupancy");
  } else {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&teams, l.kernel, l.threads, l.shared_bytes),
          "asking for the kernel's occupancy");
    teams *= limits(device).multiprocessors;
  }
  return std::max(teams, 1);
}

}  // namespace

int max_cluster(const void* kernel, int threads, int device) {
  if (!limits(device).clusters) return 1;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "asking for a kernel's attributes");
  if (attributes.ptxVersion < 90) return 1;  // compiled for an older architecture: this image knows no clusters
  allow_large_clusters(kernel);
  cudaLaunchAttribute attribute;
  const Launch one{kernel, threads, 1, 0};
  const cudaLaunchConfig_t config = configuration(one, attribute, 16, 1, 0);
  int size = 1;
  check(cudaOccupancyMaxPotentialClusterSize(&size, kernel, &config), "asking for the largest cluster");
  return std::clamp(size, 1, 16);
}

std::int64_t resident_teams(const Launch& l, int device) {
  using Key = std::tuple<const void*, int, int, std::size_t, int>;
  static auto& known = *new std::map<Key, int>;  // never destroyed: other threads may still launch at exit
  static auto& mutex = *new std::mutex;
  const Key key{l.kernel, l.threads, l.blocks, l.shared_bytes, device};
  {
    const std::lock_guard lock(mutex);
    if (const auto it = known.find(key); it != known.end()) return it->second;
  }
  const int teams = query_resident_teams(l, device);
  const std::lock_guard lock(mutex);
  return known.emplace(key, teams).first->second;
}

void launch(const Launch& l, std::int64_t teams, void** arguments, Stream stream, int grid_y) {
  constexpr std::int64_t kMaxGrid = std::numeric_limits<std::int32_t>::max();
  const auto grid = static_cast<unsigned>(std::min(teams, kMaxGrid / l.blocks) * l.blocks);
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = configuration(l, attribute, grid, static_cast<unsigned>(grid_y), stream);
  check(cudaLaunchKernelExC(&config, l.kernel, arguments), "launching a kernel");
}

}  // namespace kfusion::cuda
