// The same function as five kernels, each a good one by itself: what fusion is compared with. Every kernel is
// threaded and vectorised, prefetches, and stores past the caches where that pays.
#include <cmath>
#include <vector>

#include "cpu/relu_layernorm/relu_layernorm.hpp"
#include "cpu/row_job.hpp"

namespace kfusion::cpu {
namespace {

/// One call: x -> relu -> centred -> y.
class Unfused {
 public:
  explicit Unfused(const RowProblem& p)
      : job_(p),
        row_bytes_(p.cols * job_.item),
        stream_(streams(p.rows * row_bytes_)),
        relu_(static_cast<std::size_t>(p.rows * row_bytes_)),
        centred_(static_cast<std::size_t>(p.rows * row_bytes_)),
        mean_(static_cast<std::size_t>(p.rows)),
        rstd_(mean_.size()),
        partial_(job_.chunks > 1 ? mean_.size() * static_cast<std::size_t>(job_.chunks) : 0) {}

  void run() {
    relu();
    mean();
    var();
    centre();
    scale();
  }

 private:
  std::byte* at(const Buffer& b, std::int64_t row, std::int64_t c) const {
    return b.data() + row * row_bytes_ + c * job_.chunk * job_.item;
  }

  /// body(group, chunk, scratch) over all tiles: x or y, of any strides, is one side of the kernel.
  template <class F>
  void for_tiles(F&& body) {
    parallel_for(job_.groups * job_.chunks, job_.threads, [&](std::int64_t begin, std::int64_t end) {
      RowJob::Scratch scratch;
      for (std::int64_t i = begin; i < end; ++i) body(job_.group(i / job_.chunks), i % job_.chunks, scratch);
      job_.k.fence();
    });
  }

  /// body(row, chunk) over the dense intermediates.
  template <class F>
  void for_chunks(F&& body) {
    parallel_for(job_.p.rows * job_.chunks, job_.threads, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t row = begin / job_.chunks, c = begin % job_.chunks;
      for (std::int64_t i = begin; i < end; ++i) {
        body(row, c);
        if (++c == job_.chunks) c = 0, ++row;
      }
      job_.k.fence();
    });
  }

  /// result[row] = finish(the sum of part(row, chunk), the chunks from left to right), in the compute type.
  template <class Part, class Finish>
  void reduce(std::vector<double>& result, Part part, Finish finish) {
    const auto rounded = [this](double v) { return job_.p.dtype == DType::kFloat64 ? v : static_cast<float>(v); };
    const std::int64_t chunks = job_.chunks;
    for_chunks([&](std::int64_t row, std::int64_t c) {
      const double sum = part(row, c);
      (chunks == 1 ? result[row] : partial_[row * chunks + c]) = chunks == 1 ? rounded(finish(sum)) : sum;
    });
    if (chunks == 1) return;
    for (std::int64_t row = 0; row < job_.p.rows; ++row) {
      double sum = 0;
      for (std::int64_t c = 0; c < chunks; ++c) sum += partial_[row * chunks + c];
      result[row] = rounded(finish(sum));
    }
  }

  void relu() {
    for_tiles([this](const Group& g, std::int64_t c, RowJob::Scratch& scratch) {
      const DenseRows x = job_.read(g, c, scratch);
      for (std::int64_t r = 0; r < g.rows; ++r)
        job_.k.relu({x.data + r * x.stride, at(relu_, g.first + r, c), job_.chunk_size(c), stream_});
    });
  }

  void mean() {
    const auto cols = static_cast<double>(job_.p.cols);
    reduce(
        mean_, [this](std::int64_t row, std::int64_t c) { return job_.k.sum(at(relu_, row, c), job_.chunk_size(c)); },
        [cols](double sum) { return sum / cols; });
  }

  void var() {
    const auto cols = static_cast<double>(job_.p.cols);
    reduce(
        rstd_,
        [this](std::int64_t row, std::int64_t c) {
          return job_.k.sum_squares(at(relu_, row, c), job_.chunk_size(c), mean_[row]);
        },
        [cols, eps = job_.p.eps](double sum) { return 1 / std::sqrt(sum / cols + eps); });
  }

  void centre() {
    for_chunks([this](std::int64_t row, std::int64_t c) {
      job_.k.centre({at(relu_, row, c), at(centred_, row, c), job_.chunk_size(c), stream_}, mean_[row]);
    });
  }

  void scale() {
    for_tiles([this](const Group& g, std::int64_t c, RowJob::Scratch& scratch) {
      for (std::int64_t r = 0; r < g.rows; ++r)
        job_.k.scale(
            {at(centred_, g.first + r, c), job_.target(g, c, r, scratch), job_.chunk_size(c), stream_ && job_.y_dense},
            rstd_[g.first + r], job_.affine_at(c));
      job_.finish(g, c, scratch);
    });
  }

  RowJob job_;
  std::int64_t row_bytes_;
  bool stream_;
  Buffer relu_, centred_;
  std::vector<double> mean_, rstd_, partial_;
};

}  // namespace

void unfused_relu_layernorm(const RowProblem& p) {
  if (p.rows > 0 && p.cols > 0) Unfused(p).run();
}

}  // namespace kfusion::cpu
