#include "cpu/codegen/generated.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/codegen/chains/links.hpp"
#include "cpu/codegen/chains/whole_links.hpp"
#include "cpu/codegen/columns/column_jobs.hpp"
#include "cpu/codegen/form/form.hpp"
#include "cpu/codegen/form/form_key.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/kernel_text.hpp"
#include "cpu/codegen/rows/pieces.hpp"
#include "cpu/codegen/rows/row_plan.hpp"
#include "cpu/index_fault.hpp"
#include "cpu/job.hpp"
#include "cpu/machine_code/libm_table.hpp"
#include "cpu/machine_code/machine_code.hpp"
#include "cpu/stream.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/graph/constant.hpp"
#include "kfusion/room.hpp"

namespace kfusion::cpu {
namespace {

static_assert(sizeof(std::atomic<std::int32_t>) == 4 && offsetof(IndexFault, table) == 0 &&
              offsetof(IndexFault, index) == 8);  // codegen/elements/takes.cpp

/// The code of one text, made when it is first asked for. Two threads that ask at once may both make it; a child of
/// fork() never waits for a thread that it does not have.
class KernelCode {
 public:
  KernelCode(const Kernel& k, const ir::TargetFacts& target, bool streams) : form_(k, target, streams) {}
  ~KernelCode() { delete ready_.load(); }
  KernelCode(const KernelCode&) = delete;
  KernelCode& operator=(const KernelCode&) = delete;

  const ir::Form& form() const { return form_; }
  const std::vector<ir::Function>& functions() const {
    if (const Ready* r = ready_.load(std::memory_order_acquire)) return r->functions;
    auto code = machine_code(ir::key_of(form_), [this] { return ir::kernel_text(form_); }, form_.target);
    std::vector<ir::Function> functions;
    for (const std::string& name : ir::functions_of(form_))
      functions.push_back(reinterpret_cast<ir::Function>(code->address(name)));
    auto fresh = std::make_unique<const Ready>(std::move(code), std::move(functions));
    const Ready* ready = nullptr;
    if (ready_.compare_exchange_strong(ready, fresh.get(), std::memory_order_acq_rel)) ready = fresh.release();
    return ready->functions;
  }

 private:
  struct Ready {
    std::shared_ptr<const MachineCode> code;
    std::vector<ir::Function> functions;
  };
  const ir::Form form_;
  mutable std::atomic<const Ready*> ready_{nullptr};
};

double number_of(const Constant& c, const double* parameters) {
  const double number = c.parameter >= 0 ? parameters[c.parameter] : c.value;
  return is_float(c.dtype) ? rounded(number, precision(c.dtype, c.wide)) : number;
}

}  // namespace

std::string why_not_generated(const Kernel& k) {
  switch (k.kind) {
    case Pattern::kPointwise:
    case Pattern::kRows:
    case Pattern::kFullReduction:
    case Pattern::kColumns:
      return "";
    default:
      return "pattern " + std::string(name(k.kind));
  }
}

class GeneratedKernel::Program {
 public:
  explicit Program(const Kernel& k)
      : kernel(k),
        cached_(kernel, ir::host_facts(), false),
        streaming_(kernel, ir::host_facts(), true),
        integers_(cached_.form().integers()),
        pieces_(cached_.form()),
        scratch_bytes_(scratch_bytes(ir::RowPlan(cached_.form()), kernel.cols()) + cached_.form().copied_bytes()),
        columns_(cached_.form().across ? std::optional<ir::ColumnJobs>(cached_.form()) : std::nullopt),
        rows(cached_.form().rows()),
        cols(kernel.kind == Pattern::kPointwise ? cached_.form().cols() : kernel.cols()),
        bytes(kernel.bytes()) {
    for (std::size_t t = 0; t < kernel.stores.size(); ++t)
      stored_bytes += cached_.form().elements(cached_.form().stores[t]) * cached_.form().stores[t].item;
    for (const Constant& c : kernel.constants) has_parameters_ = has_parameters_ || c.parameter >= 0;
    if (!has_parameters_)
      for (const Constant& c : kernel.constants) numbers_.push_back(number_of(c, nullptr));
  }

  const KernelCode& code(bool streams) const { return streams ? streaming_ : cached_; }
  std::int64_t work() const { return ir::work_of(kernel); }
  std::int64_t scratch_bytes_of_call() const { return scratch_bytes_; }
  /// In place the lines are in the cache already, and theirs to write.
  bool is_in_place(const std::byte* const* loads, std::byte* const* stores) const {
    for (std::size_t t = 0; t < kernel.stores.size(); ++t)
      for (std::size_t l = 0; l < kernel.loads.size(); ++l)
        if (loads[l] == stores[t]) return true;
    return false;
  }

  /// Calls f(call) with the numbers of this call. Throws IndexError where an index has no position.
  template <class F>
  void with_call(const std::byte* const* loads, std::byte* const* stores, const double* parameters, const F& f) const {
    IndexFault fault;
    ir::Call call = call_of(fault);
    call.loads = loads, call.stores = stores;
    has_parameters_ ? with_numbers(call, parameters, f) : f(call);
    fault.check(kernel.tables);
  }
  /// A call without arrays, whose numbers outlive this function.
  struct Numbers {
    std::vector<std::int64_t> integers;
    std::vector<double> numbers;
    IndexFault fault;
  };
  ir::Call call_with(Numbers& kept, const double* parameters) const {
    ir::Call call = call_of(kept.fault);
    if (!has_parameters_) return call;
    kept.integers.resize(integers_.size()), kept.numbers.resize(kernel.constants.size());
    set_numbers(parameters, kept.integers.data(), kept.numbers.data());
    call.integers = kept.integers.data(), call.numbers = kept.numbers.data();
    return call;
  }

  bool may_stream() const { return columns_ ? columns_->may_stream() : ir::may_stream(kernel, cached_.form().target); }
  void run_rows(const std::vector<ir::Function>& functions, const ir::Call& call, int threads, bool streams) const {
    if (cached_.form().in_pieces) return run_in_pieces(functions, pieces_, call, rows, threads, streams);
    const ir::Function function = functions[0];
    if (columns_) return columns_->run(function, call, threads, streams);
    const auto part = [&](std::int64_t row, std::int64_t last, std::int64_t begin, std::int64_t end) {
      const Buffer scratch = scratch_bytes_ > 0 ? Buffer(static_cast<std::size_t>(scratch_bytes_)) : Buffer();
      ir::Call mine = call;
      mine.scratch = scratch.data();
      function(&mine, row, last, begin, end);
      if (streams) stream_fence();
    };
    constexpr std::int64_t kManyParts = 8;
    if (const std::int64_t parts = kernel.parts(); parts > 0)
      return parallel_for(
          parts, threads,
          [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t p = first; p < last; ++p) part(p * rows / parts, (p + 1) * rows / parts, p, 0);
          },
          kManyParts);
    ir::share_rows(rows, cols, piece(), threads, part);
  }
  /// What one call takes of a row: only of maps less than all of it.
  std::int64_t piece() const { return kernel.kind == Pattern::kPointwise ? cached_.form().piece() : cols; }

  const Kernel kernel;

 private:
  ir::Call call_of(IndexFault& fault) const {
    const void* const* const libm = ir::libm_table(cached_.form().target.vector_bytes);
    return {nullptr, nullptr, integers_.data(), numbers_.data(), libm, &fault, nullptr, nullptr};
  }
  template <class F>
  void with_numbers(ir::Call& call, const double* parameters, const F& f) const {
    Room<std::int64_t, 64> integers(integers_.size());
    Room<double, 16> numbers(kernel.constants.size());
    set_numbers(parameters, integers.data(), numbers.data());
    call.integers = integers.data(), call.numbers = numbers.data();
    f(call);
  }
  void set_numbers(const double* parameters, std::int64_t* integers, double* numbers) const {
    std::ranges::copy(integers_, integers);
    for (std::size_t i = 0; i < kernel.constants.size(); ++i) {
      const Constant& c = kernel.constants[i];
      if (c.parameter >= 0 && is_integer(c.dtype))
        integers[cached_.form().constant(static_cast<int>(i))] = static_cast<std::int64_t>(parameters[c.parameter]);
      numbers[i] = number_of(c, parameters);
    }
  }

  const KernelCode cached_, streaming_;
  const std::vector<std::int64_t> integers_;
  const ir::Pieces pieces_;
  const std::int64_t scratch_bytes_;
  const std::optional<ir::ColumnJobs> columns_;
  std::vector<double> numbers_;
  bool has_parameters_ = false;

 public:
  const std::int64_t rows, cols, bytes;
  std::int64_t stored_bytes = 0;
};

class GeneratedKernel::Links : public ir::LinksBy<Program> {
 public:
  using LinksBy::LinksBy;
};

class GeneratedKernel::WholeLinks {
 public:
  explicit WholeLinks(const Kernel& k) : kernel(k), of_(ir::whole_links_of(kernel)) {
    for (const ir::Link& s : of_.links) kernels_.emplace_back(s.kernel);
  }

  /// run(kernel, loads, stores) for one after the other.
  template <class F>
  void for_each(const std::byte* const* loads, std::byte* const* stores, const F& run) const {
    if (kernel.rows() * kernel.cols() == 0) return;
    const Buffer memory(static_cast<std::size_t>(of_.bytes));
    const auto buffer = [&](int array) { return memory.data() + of_.places[static_cast<std::size_t>(~array)]; };
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      std::vector<const std::byte*> from;
      std::vector<std::byte*> to;
      for (const int l : of_.links[i].loads) from.push_back(l < 0 ? buffer(l) : loads[l]);
      for (const int t : of_.links[i].stores) to.push_back(t < 0 ? buffer(t) : stores[t]);
      run(kernels_[i], from.data(), to.data());
    }
  }
  const std::vector<GeneratedKernel>& kernels() const { return kernels_; }

  const Kernel kernel;

 private:
  const ir::WholeLinks of_;
  std::vector<GeneratedKernel> kernels_;
};

GeneratedKernel::GeneratedKernel(const Kernel& k) {
  if (ir::is_long_behind_reductions(k))
    whole_links_ = std::make_unique<const WholeLinks>(k);
  else if (ir::is_long_chain(k))
    links_ = std::make_unique<const Links>(k);
  else
    program_ = std::make_unique<const Program>(k);
}
GeneratedKernel::GeneratedKernel(GeneratedKernel&&) noexcept = default;
GeneratedKernel& GeneratedKernel::operator=(GeneratedKernel&&) noexcept = default;
GeneratedKernel::~GeneratedKernel() = default;

void GeneratedKernel::run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
  if (whole_links_)
    return whole_links_->for_each(
        loads, stores, [&](const GeneratedKernel& k, const auto* from, auto* to) { k.run(from, to, parameters); });
  if (links_) return links_->run(loads, stores, parameters, threads_for(ir::work_of(links_->kernel)));
  const Program& p = *program_;
  if (p.kernel.rows() * p.kernel.cols() == 0) return;
  const bool stream = streams(p.stored_bytes, p.bytes) && p.may_stream() && !p.is_in_place(loads, stores);
  const std::vector<ir::Function>& functions = p.code(stream).functions();
  p.with_call(loads, stores, parameters,
              [&](const ir::Call& call) { p.run_rows(functions, call, threads_for(p.work()), stream); });
}

void GeneratedKernel::run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                               bool stream) const {
  if (whole_links_)
    return whole_links_->for_each(loads, stores, [&](const GeneratedKernel& k, const auto* from, auto* to) {
      k.run_part(from, to, parameters, false);
    });
  if (links_) return links_->run(loads, stores, parameters, 1);
  const Program& p = *program_;
  if (p.kernel.rows() * p.kernel.cols() == 0) return;
  const std::vector<ir::Function>& functions = p.code(stream && p.may_stream()).functions();
  p.with_call(loads, stores, parameters, [&](const ir::Call& call) { p.run_rows(functions, call, 1, stream); });
}

void GeneratedKernel::run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                                std::int64_t begin, std::int64_t end) const {
  if (links_) return links_->run_range(loads, stores, parameters, begin, end);
  const Program& p = *program_;
  const ir::Function function = p.code(false).functions()[0];
  p.with_call(loads, stores, parameters, [&](const ir::Call& call) { function(&call, 0, 1, begin, end); });
}

void GeneratedKernel::compile(bool stream) const {
  if (program_) program_->code(stream && program_->may_stream()).functions();
  if (links_)
    for (const auto& p : links_->programs()) p->code(false).functions();
  if (whole_links_)
    for (const GeneratedKernel& k : whole_links_->kernels()) k.compile(false);
}

std::int64_t GeneratedKernel::work(std::int64_t elements) const {
  const Kernel& k = whole_links_ ? whole_links_->kernel : links_ ? links_->kernel : program_->kernel;
  const auto cols = static_cast<double>(program_ ? program_->cols : k.rows() * k.cols());
  return static_cast<std::int64_t>(static_cast<double>(ir::work_of(k)) * static_cast<double>(elements) / cols);
}

std::string GeneratedKernel::source() const {
  if (program_) return ir::kernel_text(program_->code(streams(program_->stored_bytes, program_->bytes)).form());
  std::string all;
  if (whole_links_) {
    for (const GeneratedKernel& k : whole_links_->kernels()) all += k.source();
    return all;
  }
  for (const auto& p : links_->programs()) all += ir::kernel_text(p->code(false).form());
  return all;
}

}  // namespace kfusion::cpu
