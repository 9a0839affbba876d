#include "cpu/products/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "cpu/buffer.hpp"
#include "cpu/job.hpp"
#include "cpu/products/factors.hpp"
#include "cpu/products/numbers.hpp"
#include "cpu/products/piece.hpp"
#include "cpu/products/wide_product.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/lower/visible.hpp"

namespace kfusion::cpu {
namespace {

/// A block has so many: scores and weights of 2 MB in float32. BLAS packs the keys anew for each block of queries.
constexpr std::int64_t kQueries = 256, kKeys = 1024;

/// How much of what two blocks of keys left counts, of scores up to `largest` each.
template <class T>
struct Merged {
  T first, second, largest;
};

/// A block of nothing but -inf has no weights; NaN stays.
template <class T>
Merged<T> merged(T a, T b) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  const T largest = a > b || a != a ? a : b;
  const auto factor = [&](T own) { return own == largest ? T(1) : own == kLowest ? T(0) : std::exp(own - largest); };
  return {factor(a), factor(b), largest};
}

/// Takes what a block of keys left into what those before it did.
template <class T>
void merge(T* largest, T* sums, T* values, const T* more_largest, const T* more_sums, const T* more, std::int64_t rows,
           std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, values += cols, more += cols) {
    const Merged<T> m = merged(largest[r], more_largest[r]);
    largest[r] = m.largest;
    sums[r] = sums[r] * m.first + more_sums[r] * m.second;
    for (std::int64_t c = 0; c < cols; ++c) values[c] = values[c] * m.first + more[c] * m.second;
  }
}

template <class T>
void divide(T* values, const T* sums, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, values += cols)
    for (std::int64_t c = 0; c < cols; ++c) values[c] /= sums[r];
}

}  // namespace

Block attention_block(const Contraction& scores) {
  const std::int64_t keys = round_up(even_part(scores.cols, kKeys), kKeyStep);
  return {1, even_part(scores.rows, kQueries), std::min(scores.cols, keys)};
}

struct AttentionKernel::Parts {
  Attention a;
  Block block;
  std::vector<std::vector<std::byte>> score_numbers, output_numbers;
  std::vector<KeyBound> bounds;                                    ///< of the keys that masks of positions let through
  std::map<std::pair<std::int64_t, std::int64_t>, Piece> weights;  ///< by queries and keys of a block
  std::map<std::int64_t, Piece> outputs;                           ///< by queries
  std::vector<WideProduct> wide;  ///< of half types: queries and keys; weights, which are float32, and values

  /// Calls visit(key, keys) for each block of keys that queries go through. `all`: also those that none of them sees.
  template <class Visit>
  void for_keys(std::int64_t row, std::int64_t rows, bool all, const Visit& visit) const {
    KeySpan span{0, a.scores.cols};
    if (!all) span = seen_keys(bounds, row, row + rows - 1, span.end);
    const std::int64_t first = span.begin / kKeyStep * kKeyStep;  // one block where no key is seen: 0 / 0
    const std::int64_t end = std::min(round_up(std::max<std::int64_t>(span.end, 1), kKeyStep), a.scores.cols);
    for (std::int64_t key = first; key < end; key += block.cols) visit(key, std::min(block.cols, end - key));
  }
};

namespace {

/// `keys`: extents that blocks of them have.
std::vector<WideProduct> wide_products(const Attention& a, const Block& b, const std::vector<std::int64_t>& keys) {
  const Product &first = a.scores.products[0], &second = a.output.products[0];
  if (!is_half(first.dtype)) return {};
  const auto queries = block_extents(a.scores.rows, b.rows);
  std::vector<WideProduct> made;
  made.emplace_back(Side{first.left.dtype, first.left.outer, first.left.depth},
                    Side{first.right.dtype, first.right.outer, first.right.depth}, queries, keys,
                    std::vector{a.scores.depth});
  made.emplace_back(Side{}, Side{second.right.dtype, second.right.outer, second.right.depth}, queries,
                    std::vector{a.output.cols}, keys);
  return made;
}

}  // namespace

AttentionKernel::AttentionKernel(Attention given) {
  auto parts = std::make_unique<Parts>(Parts{std::move(given), {}, {}, {}, {}, {}, {}, {}});
  Contraction &scores = parts->a.scores, &output = parts->a.output;
  parts->block = attention_block(scores);
  parts->bounds = bounds_of_keys(scores.epilogue, score_of(scores.epilogue));
  parts->score_numbers = numbers_of(scores);
  parts->output_numbers = numbers_of(output);
  std::vector<std::int64_t> extents;
  for (std::int64_t row = 0; row < scores.rows; row += parts->block.rows) {
    const std::int64_t rows = std::min(parts->block.rows, scores.rows - row);
    if (!parts->outputs.contains(rows)) parts->outputs.emplace(rows, whole_piece(output, {1, rows, output.cols}));
    for (const bool all : {true, false})
      parts->for_keys(row, rows, all, [&](std::int64_t, std::int64_t keys) {
        if (parts->weights.contains({rows, keys})) return;
        parts->weights.emplace(std::pair{rows, keys}, weights_piece(scores, {1, rows, keys}));
        extents.push_back(keys);
      });
  }
  parts->wide = wide_products(parts->a, parts->block, extents);
  parts_ = std::move(parts);
}

AttentionKernel::AttentionKernel(AttentionKernel&&) noexcept = default;
AttentionKernel::~AttentionKernel() = default;

class AttentionKernel::Run {
 public:
  Run(const Parts& p, const AttentionArrays& arrays, const double* parameters)
      : p_(p),
        scores_(p.a.scores),
        output_(p.a.output),
        stores_(arrays.stores),
        parameters_(parameters),
        factors_(blas_),
        score_loads_(all_loads(arrays.score_loads, scores_, p.score_numbers)),
        output_loads_(all_loads(arrays.output_loads, output_, p.output_numbers)) {
    const Product &first = scores_.products[0], &second = output_.products[0];
    queries_ = factors_.place(first.left, arrays.queries, scores_.batch_axes, scores_.rows, scores_.depth, false);
    keys_ = factors_.place(first.right, arrays.keys, scores_.batch_axes, scores_.cols, scores_.depth, false);
    values_ = factors_.place(second.right, arrays.values, output_.batch_axes, output_.cols, output_.depth, false);
    // a hidden value counts 0 times, which gives NaN where it is not finite
    all_ = p.bounds.empty() || !values_.is_finite(second.right.dtype, output_.cols, output_.depth);
  }

  void run() {
    const std::int64_t blocks = divide_up(scores_.rows, p_.block.rows);
    const int threads = threads_for(bytes_for_flops(scores_.flops() + output_.flops()));
    for (const auto& [extents, piece] : p_.weights) piece.kernel.compile(false);
    for (const auto& [rows, piece] : p_.outputs) piece.kernel.compile(false);
    for (const WideProduct& w : p_.wide) w.compile();
    const Blas::OneThread each(blas_);
    parallel_for(scores_.batches * blocks, threads, [&](std::int64_t begin, std::int64_t end) {
      const Memory mine(p_);
      for (std::int64_t job = begin; job < end; ++job) {
        // the first, the last, the second: a causal mask gives the first ones least work
        const std::int64_t i = job % blocks, row = (i % 2 == 0 ? i / 2 : blocks - 1 - i / 2) * p_.block.rows;
        dtype() == DType::kFloat64 ? run_block<double>(job / blocks, row, mine)
                                   : run_block<float>(job / blocks, row, mine);
      }
    });
  }

 private:
  /// A thread's.
  struct Memory {
    explicit Memory(const Parts& p)
        : scores(bytes(p, p.block.cols)),
          weights(bytes(p, p.block.cols)),
          values(bytes(p, p.a.output.cols)),
          more(bytes(p, p.a.output.cols)),
          rows(bytes(p, 4)),
          panels(scratch_bytes(p.wide)) {}
    static std::size_t bytes(const Parts& p, std::int64_t cols) {
      return at(p.block.rows * cols) * item_bytes(compute_dtype(p.a.scores.products[0].dtype));
    }
    Buffer scores, weights, values, more, rows, panels;
  };

  static std::vector<const std::byte*> all_loads(const std::byte* const* given, const Contraction& c,
                                                 const std::vector<std::vector<std::byte>>& numbers) {
    std::vector<const std::byte*> all(given, given + (c.epilogue.loads.size() - numbers.size()));
    for (const auto& bytes : numbers) all.push_back(bytes.data());
    return all;
  }

  DType dtype() const { return compute_dtype(scores_.products[0].dtype); }

  /// Multiplies queries and keys, or weights and values.
  void multiply(int which, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                const Matrix& right, std::byte* result, const Memory& mine) const {
    if (p_.wide.empty()) return blas_.multiply(dtype(), rows, cols, depth, left, right, result, cols);
    p_.wide[at(which)].multiply(blas_, rows, cols, depth, left, right, result, cols, mine.panels.data());
  }

  /// All keys that some queries see.
  template <class T>
  void run_block(std::int64_t batch, std::int64_t row, const Memory& mine) const {
    const std::int64_t rows = std::min(p_.block.rows, scores_.rows - row), cols = output_.cols;
    const auto as = [](const Buffer& b) { return reinterpret_cast<T*>(b.data()); };
    T *const largest = as(mine.rows), *const sums = largest + p_.block.rows;
    T *const more_largest = sums + p_.block.rows, *const more_sums = more_largest + p_.block.rows;
    bool first = true;
    p_.for_keys(row, rows, all_, [&](std::int64_t key, std::int64_t keys) {
      std::byte* const partials[] = {reinterpret_cast<std::byte*>(first ? largest : more_largest),
                                     reinterpret_cast<std::byte*>(first ? sums : more_sums)};
      std::byte* const products[] = {mine.scores.data(), mine.weights.data()};
      multiply(0, rows, keys, scores_.depth, queries_.at(batch, row), keys_.at(batch, key), products[0], mine);
      const Places places{score_loads_.data(), nullptr, products, partials, parameters_};
      run_piece(p_.weights.at({rows, keys}), places, {batch, row, key}, false);
      const Matrix weights{products[1], keys, 1};
      Matrix values = values_.at(batch, 0);
      values.data += key * values.depth * values_.item;
      const Buffer& to = first ? mine.values : mine.more;
      multiply(1, rows, cols, keys, weights, values, to.data(), mine);
      if (!first) merge(largest, sums, as(mine.values), more_largest, more_sums, as(mine.more), rows, cols);
      first = false;
    });
    divide(as(mine.values), sums, rows, cols);
    std::byte* const product = mine.values.data();
    run_piece(p_.outputs.at(rows), {output_loads_.data(), stores_, &product, nullptr, parameters_}, {batch, row, 0},
              false);
  }

  const Parts& p_;
  const Blas& blas_ = Blas::of_call();
  const Contraction &scores_, &output_;
  std::byte* const* stores_;
  const double* parameters_;
  Factors factors_;
  std::vector<const std::byte*> score_loads_, output_loads_;
  Factors::Placed queries_, keys_, values_;
  bool all_ = true;  ///< takes keys that no query sees, too
};

void AttentionKernel::run(const AttentionArrays& arrays, const double* parameters) const {
  Run(*parts_, arrays, parameters).run();
}

}  // namespace kfusion::cpu
