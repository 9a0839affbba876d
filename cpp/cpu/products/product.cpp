#include "cpu/products/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "cpu/buffer.hpp"
#include "cpu/job.hpp"
#include "cpu/platform.hpp"
#include "cpu/products/factors.hpp"
#include "cpu/products/numbers.hpp"
#include "cpu/products/wide_product.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/room.hpp"

namespace kfusion::cpu {
namespace {

/// A block has so many bytes. BLAS packs both factors anew for each, less in all for larger ones; smaller ones stay in
/// the cache.
constexpr std::int64_t kMostBlockBytes = 4 << 20, kLeastBlockBytes = 512 << 10;
constexpr std::int64_t kJobFlops = 16 << 20;  ///< worth a block of its own, where blocks are few
constexpr std::int64_t kJobBytes = 2 << 20;   ///< of the right factor, worth one where rows are few
constexpr std::int64_t kJobs = 8;             ///< of stored products, for cores that are busy elsewhere
constexpr std::int64_t kLeastSide = 128, kLeastReduced = 256;  ///< of a block that is made smaller for that

DType type_of(const Contraction& c) { return compute_dtype(c.products[0].dtype); }
std::int64_t item_of(const Contraction& c) { return static_cast<std::int64_t>(item_bytes(type_of(c))); }

std::int64_t block_elements(const Contraction& c) {
  const auto bytes = std::clamp(static_cast<std::int64_t>(last_level_cache() / 8), kLeastBlockBytes, kMostBlockBytes);
  return bytes / item_of(c) / std::ssize(c.products);
}

/// All batches as one product with more rows.
bool batches_are_rows(const Contraction& c) {
  if (c.batch_axes.size() > 1) return false;
  return std::ranges::all_of(c.products, [&](const Product& p) {
    if (p.right.batch != 0 || (p.left.batch == 0 && c.batches > 1)) return false;
    return p.left.batch == p.left.outer * c.rows || c.rows == 1 || c.batches == 1;
  });
}

/// Blocks of about equal size, the extent rounded up to whole vectors; as many for each core, where they are many.
std::int64_t even_block(std::int64_t extent, std::int64_t most) {
  std::int64_t count = divide_up(extent, std::max<std::int64_t>(most, 1));
  if (const std::int64_t cores = usable_cores(); count > cores) count = round_up(count, cores);
  return std::min(extent, round_up(divide_up(extent, count), 16));
}

/// Bytes of the right factors of all batches.
std::int64_t right_bytes(const Contraction& c) {
  std::int64_t elements = 0;
  for (const Product& p : c.products) elements += (p.right.batch == 0 ? 1 : c.batches) * c.cols * c.depth;
  return elements * item_of(c);
}

/// More of them, where each is long work. Parts of a reduced axis have to be combined: first along those that are kept.
void split_for_threads(const Contraction& c, Block& b) {
  const bool reduces = c.reduces != Reduces::kNothing;
  const std::int64_t cores = usable_cores(), most = reduces ? cores : std::max(kJobs, cores);
  const auto by_flops = static_cast<std::int64_t>(c.flops() / kJobFlops);
  const std::int64_t wanted = std::min(most, std::max(by_flops, right_bytes(c) / kJobBytes));
  const std::int64_t least = 2 * (reduces ? kLeastReduced : kLeastSide);
  const auto jobs = [&] {
    return divide_up(c.batches, b.batches) * divide_up(c.rows, b.rows) * divide_up(c.cols, b.cols);
  };
  while (jobs() < wanted) {
    const bool rows_first = reduces ? c.reduces == Reduces::kCols : b.rows > b.cols;
    std::int64_t &first = rows_first ? b.rows : b.cols, &second = rows_first ? b.cols : b.rows;
    std::int64_t& side = first < least ? second : first;
    if (side < least) break;
    side = divide_up(side, 2);
  }
}

/// Four times as many columns as rows: of 512 x 2048, 1024 x 1024 and 2048 x 512 the first is the quickest.
Block block_of(const Contraction& c) {
  const std::int64_t elements = block_elements(c);
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(elements)));
  const std::int64_t most_rows = side / 2, most_cols = 2 * side;
  Block b{1, std::min(c.rows, most_rows), std::min(c.cols, most_cols)};
  if (c.reduces == Reduces::kRows && c.rows <= most_cols) b.rows = c.rows;  // parts would have to be combined
  if (c.reduces != Reduces::kRows) b.rows = std::min(c.rows, std::max(b.rows, elements / b.cols));
  if (b.rows == c.rows && batches_are_rows(c)) b.batches = std::clamp(most_rows / c.rows, std::int64_t{1}, c.batches);
  if (c.reduces != Reduces::kCols)
    b.cols = std::min(c.cols, std::max<std::int64_t>(1, elements / (b.batches * b.rows)));
  split_for_threads(c, b);
  if (b.rows < c.rows) b.rows = even_block(c.rows, b.rows);
  if (b.cols < c.cols) b.cols = even_block(c.cols, b.cols);
  if (b.rows < c.rows) b.batches = 1;
  return b;
}

/// Products of half types, of blocks of `c`.
std::vector<WideProduct> wide_products(const Contraction& c, const Block& b) {
  std::vector<WideProduct> made;
  std::vector<std::int64_t> rows;
  for (const std::int64_t batches : block_extents(c.batches, b.batches))
    for (const std::int64_t n : block_extents(c.rows, b.rows)) rows.push_back(batches * n);
  for (const Product& p : c.products) {
    if (!is_half(p.left.dtype)) break;
    const std::int64_t between_rows = c.rows == 1 && b.batches > 1 ? p.left.batch : p.left.outer;
    made.emplace_back(Side{p.left.dtype, between_rows, p.left.depth}, Side{p.right.dtype, p.right.outer, p.right.depth},
                      rows, block_extents(c.cols, b.cols), std::vector{c.depth});
  }
  return made;
}

}  // namespace

Cut cut_of(const Contraction& c) {
  Cut cut;
  cut.block = block_of(c);
  cut.blocks[0] = divide_up(c.batches, cut.block.batches);
  cut.blocks[1] = divide_up(c.rows, cut.block.rows);
  cut.blocks[2] = divide_up(c.cols, cut.block.cols);
  if (c.reduces == Reduces::kRows) cut.parts = cut.blocks[1];
  if (c.reduces == Reduces::kCols) cut.parts = cut.blocks[2];
  return cut;
}

/// All that does not depend on addresses.
struct ProductKernel::Parts {
  Contraction c;
  Cut cut;
  std::int64_t item;
  int given_loads;                           ///< those after them are numbers of our own
  std::vector<std::vector<std::byte>> made;  ///< numbers
  std::vector<DType> partials;               ///< where blocks have a part of what is reduced
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Piece> pieces, combining;  ///< by extents of a block
  std::vector<WideProduct> wide;  ///< of half types, by product
  std::int64_t stored_bytes = 0;

  const Piece& piece(const Block& b) const { return pieces.at({b.batches, b.rows, b.cols}); }
  const Piece& combiner(const Block& b) const { return combining.at(combined(b)); }
  std::tuple<std::int64_t, std::int64_t, std::int64_t> combined(const Block& b) const {
    return {b.batches, c.reduces == Reduces::kRows ? 1 : b.rows, c.reduces == Reduces::kCols ? 1 : b.cols};
  }
};

ProductKernel::ProductKernel(Contraction given) {
  auto parts = std::make_unique<Parts>(Parts{std::move(given), {}, 0, 0, {}, {}, {}, {}, {}});
  Contraction& c = parts->c;
  parts->cut = cut_of(c);
  parts->item = item_of(c);
  parts->given_loads = static_cast<int>(c.epilogue.loads.size());
  parts->made = numbers_of(c);
  const Block& b = parts->cut.block;
  parts->wide = wide_products(c, b);
  const bool split = parts->cut.parts > 1;
  if (split) parts->partials = partial_types(c);
  for (const std::int64_t batches : block_extents(c.batches, b.batches))
    for (const std::int64_t rows : block_extents(c.rows, b.rows))
      for (const std::int64_t cols : block_extents(c.cols, b.cols)) {
        const Block block{batches, rows, cols};
        parts->pieces.emplace(std::tuple{batches, rows, cols}, split ? partial_piece(c, block) : whole_piece(c, block));
        if (split && !parts->combining.contains(parts->combined(block)))
          parts->combining.emplace(parts->combined(block), combining_piece(c, block, parts->cut.parts));
      }
  if (c.reduces == Reduces::kNothing)
    for (const Store& s : c.epilogue.stores)
      parts->stored_bytes += c.batches * c.rows * c.cols * static_cast<std::int64_t>(item_bytes(s.to.dtype));
  parts_ = std::move(parts);
}

ProductKernel::ProductKernel(ProductKernel&&) noexcept = default;
ProductKernel::~ProductKernel() = default;

/// One call.
class ProductKernel::Run {
 public:
  Run(const Parts& p, const std::byte* const* left, const std::byte* const* right, const std::byte* const* loads,
      std::byte* const* stores, const double* parameters)
      : p_(p), c_(p.c), stores_(stores), parameters_(parameters), loads_(c_.epilogue.loads.size()), factors_(blas_) {
    for (int i = 0; i < p.given_loads; ++i) loads_[at(i)] = loads[i];
    for (std::size_t i = 0; i < p.made.size(); ++i) loads_[at(p.given_loads) + i] = p.made[i].data();
    stream_ = streams(p.stored_bytes);
    for (const DType t : p.partials) {
      const std::int64_t bytes = jobs() * p.cut.parts * kept(p.cut.block) * static_cast<std::int64_t>(item_bytes(t));
      partials_.emplace_back(at(bytes)), partial_bytes_ += bytes;
    }
    for (std::size_t i = 0; i < c_.products.size(); ++i) {
      const Product& product = c_.products[i];
      const bool merged = p.cut.block.batches > 1;
      if (i == 0)  // there is one left factor
        left_ = factors_.place(product.left, left[0], c_.batch_axes, c_.rows, c_.depth, merged);
      right_.push_back(factors_.place(product.right, right[i], c_.batch_axes, c_.cols, c_.depth, false));
    }
  }

  void run() {
    const double flops = c_.flops() * static_cast<double>(c_.products.size());
    const std::int64_t work = bytes_for_flops(flops) + right_bytes(c_) + p_.stored_bytes;
    for (const auto* pieces : {&p_.pieces, &p_.combining})
      for (const auto& [extents, piece] : *pieces) piece.kernel.compile(stream_ && pieces == &p_.pieces);
    for (const WideProduct& w : p_.wide) w.compile();
    const Blas::OneThread each(blas_);
    const std::int64_t parts = p_.cut.parts;
    parallel_for(jobs() * parts, threads_for(work), [&](std::int64_t begin, std::int64_t end) {
      const Memory mine(p_);
      for (std::int64_t i = begin; i < end; ++i) run_part(i / parts, i % parts, mine);
    });
    if (parts > 1)
      parallel_for(jobs(), threads_for(partial_bytes_), [this](std::int64_t begin, std::int64_t end) {
        for (std::int64_t job = begin; job < end; ++job) combine(job);
      });
  }

 private:
  /// A thread's.
  struct Memory {
    explicit Memory(const Parts& p)
        : block_bytes(round_up(p.cut.block.size() * p.item, 64)),
          products(at(block_bytes) * p.c.products.size()),
          panels(scratch_bytes(p.wide)) {}
    std::int64_t block_bytes;
    Buffer products, panels;
  };

  std::int64_t jobs() const {
    return p_.cut.blocks[0] * (c_.reduces == Reduces::kRows ? 1 : p_.cut.blocks[1]) *
           (c_.reduces == Reduces::kCols ? 1 : p_.cut.blocks[2]);
  }

  struct At {
    std::int64_t batch, row, col;
    Block block;
  };

  At block_at(std::int64_t batch, std::int64_t row, std::int64_t col) const {
    const Block& b = p_.cut.block;
    At a{batch * b.batches, row * b.rows, col * b.cols, {}};
    a.block = {std::min(b.batches, c_.batches - a.batch), std::min(b.rows, c_.rows - a.row),
               std::min(b.cols, c_.cols - a.col)};
    return a;
  }

  /// Neighbouring jobs have the same columns: a part of the right factor, which is often the larger one.
  At part_at(std::int64_t job, std::int64_t part) const {
    const std::int64_t rows = c_.reduces == Reduces::kRows ? 1 : p_.cut.blocks[1];
    const std::int64_t cols = c_.reduces == Reduces::kCols ? 1 : p_.cut.blocks[2];
    return block_at(job / (rows * cols), job % rows + (c_.reduces == Reduces::kRows ? part : 0),
                    job / rows % cols + (c_.reduces == Reduces::kCols ? part : 0));
  }

  void run_part(std::int64_t job, std::int64_t part, const Memory& mine) const {
    const At a = part_at(job, part);
    Room<std::byte*, 4> products(c_.products.size());
    for (std::size_t i = 0; i < c_.products.size(); ++i) {
      products[i] = mine.products.data() + static_cast<std::int64_t>(i) * mine.block_bytes;
      multiply(i, a, products[i], mine);
    }
    run_piece(p_.piece(a.block), a, products.data(), job, part, stream_);
  }

  void combine(std::int64_t job) const {
    const At first = part_at(job, 0);
    run_piece(p_.combiner(first.block), first, nullptr, job, 0, false);
  }

  void multiply(std::size_t i, const At& a, std::byte* result, const Memory& mine) const {
    const std::int64_t rows = a.block.batches * a.block.rows;
    if (c_.depth == 0) {
      std::memset(result, 0, at(a.block.size() * p_.item));
      return;
    }
    Matrix left = left_.at(a.batch, a.row);
    if (c_.rows == 1 && a.block.batches > 1) left.outer = left_.batches.back();
    const Matrix right = right_[i].at(a.batch, a.col);
    if (!p_.wide.empty())
      return p_.wide[i].multiply(blas_, rows, a.block.cols, c_.depth, left, right, result, a.block.cols,
                                 mine.panels.data());
    blas_.multiply(type_of(c_), rows, a.block.cols, c_.depth, left, right, result, a.block.cols);
  }

  /// Elements of a partial result that a block leaves.
  std::int64_t kept(const Block& b) const { return b.batches * (c_.reduces == Reduces::kRows ? b.cols : b.rows); }

  void run_piece(const Piece& piece, const At& a, std::byte* const* products, std::int64_t job, std::int64_t part,
                 bool stream) const {
    Room<std::byte*, 4> partials(p_.partials.size());
    for (std::size_t i = 0; i < p_.partials.size(); ++i)
      partials[i] = partials_[i].data() + (job * p_.cut.parts * kept(p_.cut.block) + part * kept(a.block)) *
                                              static_cast<std::int64_t>(item_bytes(p_.partials[i]));
    const Places places{loads_.data(), stores_, products, partials.data(), parameters_};
    cpu::run_piece(piece, places, {a.batch, a.row, a.col}, stream);
  }

  const Parts& p_;
  const Blas& blas_ = Blas::of_call();
  const Contraction& c_;
  std::byte* const* stores_;
  const double* parameters_;
  std::vector<const std::byte*> loads_;
  Factors factors_;
  Factors::Placed left_;
  std::vector<Factors::Placed> right_;
  std::vector<Buffer> partials_;  ///< of all parts
  std::int64_t partial_bytes_ = 0;
  bool stream_ = false;
};

void ProductKernel::run(const std::byte* const* left, const std::byte* const* right, const std::byte* const* loads,
                        std::byte* const* stores, const double* parameters) const {
  Run(*parts_, left, right, loads, stores, parameters).run();
}

}  // namespace kfusion::cpu
