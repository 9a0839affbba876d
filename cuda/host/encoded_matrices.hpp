// Matrices as the copy engine is told of them, kept from one launch of a kernel to the next.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstring>

#include "codegen/contractions/contraction_kernel.hpp"

namespace kfusion::cuda {

/// Each matrix of a kernel as encoded for its last two addresses: results are made anew while the last ones live, so
/// that two take turns.
class EncodedMatrices {
 public:
  /// For one launch, whose matrices come in the kernel's order. When several run at once, one uses what is kept.
  class Launch {
   public:
    Launch(const EncodedMatrices& all, const codegen::EncodeMatrix& encode)
        : all_(all), encode_(encode), is_mine_(!all.busy_.test_and_set(std::memory_order_acquire)) {}
    ~Launch() {
      if (is_mine_) all_.busy_.clear(std::memory_order_release);
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    void operator()(const codegen::BoxedMatrix& m, const std::byte* address, std::byte* to) {
      const std::size_t i = next_++;
      if (!is_mine_ || i >= kMost) return encode_(m, address, to);
      Kept* const kept = all_.kept_[i];
      Kept& found = kept[kept[0].address != address];
      if (found.address == address && address) {
        std::memcpy(to, found.bytes, kBytes);
        return;
      }
      encode_(m, address, to);  // which may fail
      if (kept[1].address) kept[0] = kept[1];
      Kept& last = kept[kept[0].address ? 1 : 0];
      last.address = address;
      std::memcpy(last.bytes, to, kBytes);
    }

   private:
    const EncodedMatrices& all_;
    const codegen::EncodeMatrix& encode_;
    const bool is_mine_;
    std::size_t next_ = 0;
  };

 private:
  static constexpr std::size_t kMost = 8, kBytes = 128;
  struct Kept {
    const std::byte* address;  ///< nullptr: nothing is kept
    std::byte bytes[kBytes];
  };

  mutable std::atomic_flag busy_;
  mutable Kept kept_[kMost][2] = {};
};

}  // namespace kfusion::cuda
