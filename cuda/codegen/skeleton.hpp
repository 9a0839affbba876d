// What a skeleton of device/*.cuh is to the generator. Each has a file of its own in skeletons/, which says when it is
// chosen and with what, how its blocks share the elements, and how it is called; skeletons/table.cpp has them in order.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/arrangement.hpp"
#include "codegen/generate.hpp"

namespace kfusion::codegen {

/// A kernel and the device that will run it: what skeletons choose by.
struct Problem {
  const Kernel& k;
  const Arrangement& a;
  const Target& target;
  const std::vector<bool> held;  ///< by load: as large as the matrix and used more than once, or at once
  Problem(const Kernel& k, const Arrangement& a, const Target& target);
};

/// What the text depends on besides loops and their arrangement.
struct Traits {
  /// How held loads come: at once, or by way of shared memory that each thread, or bulk copies, fill ahead.
  enum class Staging : std::uint8_t { kNone, kOwnCopies, kBulkCopies };

  std::vector<bool> held;  ///< by load: loaded once, stays in registers for all sweeps
  Staging staging = Staging::kNone;
  std::vector<int> shared;          ///< loads that shared memory keeps: vectors that are the same for all rows,
  bool shares_row_values = false;   ///< or a value a row that is the same for all columns
  int span_rows = 0;                ///< of spans: rows that a warp stages at a time
  int plane_entries = 0;            ///< of a plane, where operands lie in planes
  bool planes_twice = false;        ///< see device/planes.cuh
  bool sums = false;                ///< of columns, which lanes hold beside the rows
  bool keeps_exponentials = false;  ///< registers keep exp(x - max) instead of x
  bool through_l1 =
      false;  ///< what is loaded once too: quicker by 4 percent where nothing is brought to L2 before (H200)
};

/// The members of device::Geometry, in its order.
struct Geometry {
  std::int64_t rows = 0, warps = 0, splits = 0, box = 0, ahead = 0;
};

/// What is a number at run time.
struct Division {
  struct Extent {
    std::int64_t x = 1, y = 1, z = 1;
  };

  Launch launch;
  std::optional<Geometry> geometry;
  Division(Extent grid, Extent block, std::optional<Geometry> members = {});
};

/// A skeleton as it was chosen for a kernel: the base of each one's own configuration. Sizes of `outer` (of `inner`
/// where nothing is reduced) play no part in what is static in the text, but for whether they are few.
struct Configuration {
  Traits traits;
  int threads = 256, least_blocks = 2;  ///< __launch_bounds__

  virtual ~Configuration() = default;
  /// The arguments of the skeleton's template after Fused.
  virtual std::string call() const = 0;
  /// Which blocks share the elements. `partial_bytes`: sizeof a partial result.
  virtual Division launch(const Problem& p, std::int64_t partial_bytes) const = 0;
};

/// A row of the table.
struct Skeleton {
  const char *name, *header;
  std::unique_ptr<const Configuration> (*choose)(const Problem& p);  ///< null where it does not suit
  bool workspace = false, standing = false;                          ///< memory that its function takes (Launch)
};

/// The skeleton of a Config with `static std::optional<Config> choose(const Problem&)`.
template <class Config>
constexpr Skeleton skeleton(const char* name, const char* header, bool workspace = false, bool standing = false) {
  const auto choose = [](const Problem& p) -> std::unique_ptr<const Configuration> {
    std::optional<Config> chosen = Config::choose(p);
    return chosen ? std::make_unique<const Config>(*std::move(chosen)) : nullptr;
  };
  return {name, header, choose, workspace, standing};
}

struct Chosen {
  Skeleton skeleton;
  std::unique_ptr<const Configuration> configuration;
};

/// The first of the table that suits.
Chosen choose(const Problem& p);

/// Whether shared memory has room for the planes of a kernel, and there are rows enough.
bool has_planes(const Problem& p);

/// Whether bulk copies can bring rows whose columns are summed, in vectors of this arrangement.
bool has_summed_rings(const Problem& p);

/// "a, b, c"
template <class... Ints>
std::string listed(Ints... numbers) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + std::to_string(numbers)), ...);
  return text;
}
inline const char* flag(bool is) { return is ? "true" : "false"; }

}  // namespace kfusion::codegen
