// device/packed.cuh: rows so short that whole ones of up to 64 elements are whole 16-byte slots: several in registers
// of a lane.
#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct PackedRowsPolicy {
  static constexpr int kThreads = 128, kLeastBlocks = 4, kLeastHeavyBlocks = 2;
};

struct PackedRows : Configuration {
  int rows = 1;  ///< of a lane

  static std::optional<PackedRows> choose(const Problem& p) {
    using Policy = PackedRowsPolicy;
    if (p.a.packed == 0) return {};
    PackedRows c;
    c.traits.held = p.held, c.traits.keeps_exponentials = true;
    c.rows = p.a.packed;
    c.threads = Policy::kThreads;
    c.least_blocks = is_heavy(p.k) ? Policy::kLeastHeavyBlocks : Policy::kLeastBlocks;
    return c;
  }

  std::string call() const override { return listed(rows); }

  Division launch(const Problem& p, std::int64_t) const override {
    Division d;
    d.launch.block[0] = unsigned_of(threads);
    d.launch.grid[0] = unsigned_of(divide_up(product(p.a.outer), std::int64_t{threads} * rows));
    d.launch.shared_bytes = static_cast<std::size_t>(packed_slots(p.k, p.a) * threads * kSlotBytes);
    d.geometry = {product(p.a.outer), 1, 1, 0, 0};
    return d;
  }
};

}  // namespace

Skeleton packed_rows() { return skeleton<PackedRows>("packed_rows", "device/packed.cuh"); }

}  // namespace kfusion::codegen
