// What a kernel needs of registers and shared memory, and what a device has of them: what skeletons have in common.
#pragma once
#include <algorithm>

#include "codegen/skeleton.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::codegen {

inline constexpr std::int64_t kSlotBytes = 16;  ///< what a lane loads at once
inline constexpr int kWarp = 32;
inline constexpr int kMaxTeamThreads = 512;                  ///< of a block that shares rows or columns with others
inline constexpr int kMaxCluster = 8, kLargestCluster = 16;  ///< blocks: on all GPUs that have clusters, on some
inline constexpr int kBlocksPerMultiprocessor = 4;           ///< where blocks share a reduction
inline constexpr std::int64_t kTicketBytes = 16;             ///< of standing memory, by which blocks take turns

inline std::int64_t clamp(std::int64_t n, std::int64_t low, std::int64_t high) {
  return std::max(low, std::min(n, high));
}

// ---- of a device ----------------------------------------------------------------------------------------------------

/// Shared memory that each of so many blocks can have that share a multiprocessor.
std::int64_t shared_bytes_of(int resident, const Target& target);

/// Threads of a multiprocessor, at most. Source: CUDA C++ Programming Guide, "Technical specifications per compute
/// capability".
int most_threads(const Target& target);

/// Blocks of a cluster, at most.
int most_blocks(const Target& target);

// ---- of a kernel ----------------------------------------------------------------------------------------------------

/// Vectors of a row: the most that one can have.
std::int64_t vectors_of(const Arrangement& a);

/// Registers of a thread that the chosen loads of one vector take, in bytes.
std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen);

/// Bytes that a row takes in registers.
std::int64_t row_bytes(const Problem& p);

/// Registers of a thread that the sums of one vector's columns take, in bytes.
std::int64_t sum_bytes(const Kernel& k, const Arrangement& a);

/// By load: whether it varies along the lanes.
std::vector<bool> element_loads(const Kernel& k, const Arrangement& a);

/// Whether sweeps load more than what is held: weights, and the like.
bool fetches(const Problem& p);

/// What bulk copies can bring: rows of whole 16-byte vectors.
bool is_bulk_copied(const Kernel& k, const Arrangement& a, std::size_t load);

/// How many vectors a thread should have on their way for `bytes` bytes, fewer where much is computed of each.
int vectors_in_flight(const Kernel& k, const Arrangement& a, int bytes, int most);

/// Functions of doubles take many registers.
bool in_doubles(const Kernel& k);

/// It computes much of each element, or needs many registers for what it computes. What stands once per row does not
/// count: a warp computes it once, and needs little of it while it goes over the elements.
bool is_heavy(const Kernel& k);

/// Blocks that have `rows` rows each, and tell each other nothing.
Division divide_rows(const Problem& p, int threads, std::int64_t rows, std::int64_t shared_bytes = 0);

/// Bytes of a block's planes (device/planes.cuh).
std::int64_t plane_bytes(const Arrangement& a, const Traits& traits);

// ---- partial results ------------------------------------------------------------------------------------------------

/// Upper bounds for the bytes of a sweep's partial results, and of a column's.
std::int64_t partial_bound(const Kernel& k);
std::int64_t column_bound(const Kernel& k);

/// Bytes of a device::Told, of partial results of so many bytes.
std::int64_t exchange_room(std::int64_t partial_bytes);

/// Rounded up to whole slots.
inline std::int64_t whole_slots(std::int64_t bytes) { return round_up(bytes, kSlotBytes); }

// ---- rows in spans --------------------------------------------------------------------------------------------------

/// Elements in a slot, the most of all staged operands: spans that begin with a multiple of it begin with a slot.
std::int64_t span_unit(const Kernel& k, const Arrangement& a);

/// Where what is staged lies in shared memory, and how much that is: bytes an element. Results take the place of a load
/// that registers hold.
struct SpanAreas {
  std::vector<std::int64_t> loads, stores;
  std::int64_t bytes = 0;
};
SpanAreas span_areas(const Kernel& k, const Arrangement& a, const std::vector<bool>& held);

/// Slots of the largest staged operand that a lane holds of rows.
std::int64_t packed_slots(const Kernel& k, const Arrangement& a);

}  // namespace kfusion::codegen
