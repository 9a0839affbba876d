#include "backends/cuda/aligned_factors.hpp"

#include "host/cuda.hpp"

namespace kfusion {
namespace {

constexpr std::size_t kCopyEngineBytes = 16;

}  // namespace

void AlignedFactors::add(const Factor& f, const Contraction& c, std::int64_t extent) {
  std::int64_t last = (extent - 1) * f.outer + (c.depth - 1) * f.depth;
  for (std::size_t i = 0; i < c.batch_axes.size(); ++i) last += (c.batch_axes[i] - 1) * f.batch_strides[i];
  const auto item = static_cast<std::int64_t>(item_bytes(f.dtype));
  copies_.push_back({end_, static_cast<std::size_t>((last + 1) * item), f.offset * item});
  end_ += workspace_part(copies_.back().bytes);
}

void AlignedFactors::bring(std::size_t i, const std::byte*& array, const Frame& f) const {
  const Copy& copy = copies_[i];
  if (reinterpret_cast<std::uintptr_t>(array + copy.offset) % kCopyEngineBytes == 0) return;
  cuda::copy(f.workspace + copy.at, array + copy.offset, copy.bytes, f.device, f.stream);
  array = f.workspace + copy.at - copy.offset;
}

}  // namespace kfusion
