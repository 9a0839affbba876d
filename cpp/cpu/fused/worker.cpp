// What a worker starts with, and the addresses of its operands at an outer index.
#include "cpu/fused/worker.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kfusion/graph/constant.hpp"

namespace kfusion::cpu {
namespace {

/// Of a constant, as a lane of its compute type; returns its bytes.
int lane_of(const Constant& c, const double* parameters, std::byte* lane) {
  const double number = c.parameter >= 0 ? parameters[c.parameter] : c.value;
  const auto put = [lane](auto value) {
    std::memcpy(lane, &value, sizeof value);
    return static_cast<int>(sizeof value);
  };
  switch (c.dtype) {
    case DType::kFloat64:
      return put(number);
    case DType::kInt64:
      return put(c.parameter >= 0 ? static_cast<std::int64_t>(number) : c.integer);
    case DType::kInt32:
      return put(static_cast<std::int32_t>(c.integer));
    case DType::kBool:
      return put(std::int32_t{number != 0});
    default:
      return put(static_cast<float>(rounded(number, precision(c.dtype, c.wide))));
  }
}

}  // namespace

Worker::Worker(const FusedCall& call) : call_(call), program_(call.program) {
  attach();
  set_constants();
  copy_shared();
  go_to(0);
  if (!program_.scalars.empty()) run_row_values(program_.scalars);
}

Worker::Worker(const FusedCall& call, const Worker& from) : call_(call), program_(call.program) {
  attach();
  std::memcpy(scratch_ + program_.homes_begin, from.scratch_ + program_.homes_begin,
              static_cast<std::size_t>(program_.homes_end - program_.homes_begin));
  for (const int operand : program_.kept) at_[operand] = from.at_[operand];
  for (const Source& s : program_.sources) {
    if (s.copied && s.shared) at_[s.operand] = from.at_[s.operand];
    if (s.period > 0) copy_period(s);
  }
  go_to(0);
}

Worker::~Worker() {
  for (EdgeLine& e : edges_) KF_ISA::flush(e);
  if (context_.stream) program_.kernels->fence();
}

void Worker::attach() {
  const auto scratch_bytes = static_cast<std::size_t>(program_.scratch_bytes);
  scratch_ = local_scratch_;
  if (program_.scratch_bytes > kLocalBytes) {
    scratch_buffer_ = Buffer(scratch_bytes);
    scratch_ = scratch_buffer_.data();
  } else {
    poison_buffer(local_scratch_, scratch_bytes);
  }
  const std::size_t arrays = program_.sources.size() + program_.targets.size();
  const std::size_t addresses = at(program_.operands) + arrays;
  at_ = local_addresses_;
  if (addresses > std::size(local_addresses_)) {
    addresses_buffer_ = Buffer(addresses * sizeof(std::byte*));
    at_ = reinterpret_cast<std::byte**>(addresses_buffer_.data());
  }
  source_base_ = const_cast<const std::byte**>(at_ + program_.operands);
  target_base_ = at_ + at(program_.operands) + program_.sources.size();
  for (int k = 0; k < program_.operands; ++k)
    at_[k] = program_.places[at(k)] < 0 ? nullptr : scratch_ + program_.places[at(k)];
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    target_base_[k] = program_.targets[k].copied ? scratch_ + program_.targets[k].rows : nullptr;
  context_.at = at_;
  context_.columns = program_.space.columns;
  context_.row_steps = program_.row_steps.data();
  context_.stream = call_.stream;
  if (call_.stream) edges_.resize(program_.targets.size());
  attach_tables();
}

void Worker::attach_tables() {
  const Kernel& k = program_.kernel;
  for (const Layout& layout : program_.tables) along_rows_.push_back(along_rows(layout).flat);
  for (const Step& s : k.steps) {
    if (s.kind != StepKind::kTake) continue;
    const Layout& layout = program_.tables[at(s.index)];
    tables_.resize(program_.tables.size());
    tables_[at(s.index)] = {nullptr,
                            &program_.space.flat,
                            &layout.flat,
                            k.tables[at(s.index)].step * layout.item,
                            k.tables[at(s.index)].positions,
                            s.index,
                            layout.item,
                            lane_bytes(s.from),
                            program_.kernels->vector_bytes,
                            call_.fault};
  }
  row_tables_ = tables_;
  for (std::size_t t = 0; t < row_tables_.size(); ++t)
    row_tables_[t].extents = &group_rows_, row_tables_[t].strides = &along_rows_[t];
  context_.tables = tables_.data();
}

void Worker::set_constants() {
  for (std::size_t s = 0; s < program_.kernel.steps.size(); ++s) {
    const Step& step = program_.kernel.steps[s];
    if (step.kind != StepKind::kConstant) continue;
    lane_of(program_.kernel.constants[at(step.index)], call_.parameters, scratch_ + program_.homes[s].place);
  }
}

/// Weights that are not dense, or of a half type: once.
void Worker::copy_shared() {
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.period > 0) copy_period(s);
    if (!s.copied || !s.shared) continue;
    const std::byte* const base = call_.loads[k] + s.from.offset;
    at_[s.operand] = scratch_ + s.rows;
    if (s.from.item == s.layout.item) {
      gather(s.from, program_.space.flat, base, 0, program_.space.cols, scratch_ + s.rows);
      continue;
    }
    const DType half = program_.kernel.loads[k].dtype;
    constexpr std::int64_t kBlock = 256;
    std::byte dense[2 * kBlock];
    for (std::int64_t i = 0, n; i < program_.space.cols; i += n) {
      n = std::min(kBlock, program_.space.cols - i);
      gather(s.from, program_.space.flat, base, i, n, dense);
      program_.kernels->widen(half, dense, n, scratch_ + s.rows + i * s.layout.item);
    }
  }
}

void Worker::copy_period(const Source& s) {
  const std::int64_t all = s.period + program_.kernels->registers * program_.kernels->vector_bytes / s.layout.item;
  const std::byte* const from = call_.loads[s.array] + s.layout.offset;
  for (std::int64_t i = 0, n; i < all; i += n) {
    n = std::min(s.period, all - i);
    std::memcpy(scratch_ + s.rows + i * s.layout.item, from, static_cast<std::size_t>(n * s.layout.item));
  }
}

void Worker::go_to(std::int64_t outer) {
  const Extents& extents = program_.space.outer;
  run_ = 0;
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.copied) source_base_[k] = at_[s.operand];
    if (s.copied || s.table >= 0) continue;  // of a table, take_rows() knows where
    const std::int64_t offset = s.layout.offset + offset_of(outer, extents, s.layout.outer);
    // The position of an iota is its number.
    source_base_[k] = s.iota ? reinterpret_cast<const std::byte*>(offset) : call_.loads[s.array] + offset;
    if (!s.iota && s.layout.reach == Reach::kDirect) at_[s.operand] = const_cast<std::byte*>(source_base_[k]);
  }
  go_to_tables(outer);
  for (std::size_t k = 0; k < program_.targets.size(); ++k) {
    const Target& t = program_.targets[k];
    if (t.in_place)
      target_base_[k] = sums_of_part(k);
    else if (!t.copied)
      target_base_[k] = call_.stores[k] + t.layout.offset + offset_of(outer, extents, t.layout.outer);
    if (t.layout.reach == Reach::kDirect) at_[t.operand] = target_base_[k];
  }
}

void Worker::go_to_run(std::int64_t run) {
  const std::int64_t runs = run - std::exchange(run_, run);
  if (runs == 0) return;
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.layout.to_run == 0) continue;
    source_base_[k] += runs * s.layout.to_run;
    at_[s.operand] = const_cast<std::byte*>(source_base_[k]);
  }
  for (std::size_t k = 0; k < program_.targets.size(); ++k) {
    const Target& t = program_.targets[k];
    if (t.layout.to_run == 0) continue;
    target_base_[k] += runs * t.layout.to_run;
    at_[t.operand] = target_base_[k];
  }
}

void Worker::go_to_tables(std::int64_t outer) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const Layout& layout = program_.tables[t];
    tables_[t].base = call_.loads[program_.kernel.loads.size() + t] + layout.offset +
                      offset_of(outer, program_.space.outer, layout.outer);
    row_tables_[t].base = tables_[t].base;
  }
}

void Worker::shift_arrays(std::int64_t begin) {
  const auto shift = [&](int operand, std::int64_t place, int scale) {
    if (scale > 0) at_[operand] = scratch_ + place - begin * scale;
  };
  for (const Home& h : program_.homes) shift(h.operand, h.place, h.scale);
  for (const Reduction& r : program_.reductions) shift(r.operand, r.place, r.scale);
}

void Worker::move_accumulators(std::int64_t elements) {
  for (const Reduction& r : program_.reductions) at_[r.operand] += elements * r.scale;
}

}  // namespace kfusion::cpu
