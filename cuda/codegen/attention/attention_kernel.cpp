#include "codegen/attention/attention_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "codegen/attention/score_printer.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {
namespace {

constexpr std::int64_t kSlotElements = 8;  ///< of a half type in 16 bytes, by which the copy engine strides
constexpr std::int64_t kMostExtent = std::int64_t{1} << 31, kMostNumbers = 256;
constexpr std::size_t kMostBatchAxes = 3, kMatrixBytes = 128, kHeadBytes = 4 * 128 + 3 * 8 + 4 * 8, kNumbers = 24;

bool strides_by_slots(std::int64_t stride) { return stride >= 0 && stride % kSlotElements == 0; }

/// Whether the copy engine can bring slices of it: its rows are dense, from multiples of 16 bytes on. `row`: the stride
/// of rows.
bool is_boxed(const Factor& f, std::int64_t along, std::int64_t row, std::int64_t rows) {
  return along == 1 && (rows == 1 || (row > 0 && strides_by_slots(row))) && f.offset % kSlotElements == 0 &&
         std::ranges::all_of(f.batch_strides, strides_by_slots);
}

BoxedMatrix box_of(const Factor& f, std::int64_t numbers, std::int64_t row, std::int64_t rows, const Extents& batches,
                   int box_rows) {
  BoxedMatrix m;
  m.axes = 5;
  m.offset_bytes = f.offset * 2;
  m.sizes[0] = numbers, m.sizes[1] = rows;
  m.strides_bytes[0] = (rows == 1 ? round_up(numbers, kSlotElements) : row) * 2;
  for (std::size_t i = 0; i < kMostBatchAxes; ++i) {
    const std::size_t axis = kMostBatchAxes - 1 - i;  // the last axis of batches is the innermost
    const bool is_there = axis < batches.size() && f.batch_strides[axis] != 0;
    m.sizes[2 + i] = is_there ? batches[axis] : 1;
    m.strides_bytes[1 + i] = is_there ? f.batch_strides[axis] * 2 : m.strides_bytes[0];
  }
  m.box[0] = 64, m.box[1] = box_rows;
  m.swizzle_bytes = 128;
  m.is_bfloat16 = f.dtype == DType::kBFloat16;
  return m;
}

/// The load of the scores that comes by boxes: the first matrix of a half type.
int boxed_load(const Contraction& scores, bool aligned) {
  const auto& loads = scores.epilogue.loads;
  for (std::size_t i = 0; aligned && i < loads.size(); ++i) {
    const Operand& o = loads[i];
    if (scores.product_of(o) >= 0 || !is_half(o.dtype) || o.reduced.empty() || o.reduced[0] != 1) continue;
    const bool strided = std::ranges::all_of(o.kept, strides_by_slots);
    if (strided && o.kept.back() >= scores.cols && o.offset % kSlotElements == 0) return static_cast<int>(i);
  }
  return -1;
}

/// Describes an operand as a factor of a product.
Factor factor_of(const Operand& o) {
  Factor f{o.node, o.dtype, o.offset, 0, o.kept.back(), 1, {}};
  f.batch_strides.assign(o.kept.begin(), o.kept.end() - 1);
  return f;
}

/// By axis of batches: what `of` gives, and `otherwise` for those that are missing of three.
template <class Of>
std::array<std::int64_t, 3> by_batch(const Extents& batches, Of of, std::int64_t otherwise) {
  std::array<std::int64_t, 3> all{otherwise, otherwise, otherwise};
  for (std::size_t i = 0; i < batches.size(); ++i) all[i] = of(i);
  return all;
}

/// The store whose elements leave by 16 bytes, where one can.
int slotted_store(const Attention& a, bool aligned) {
  const Contraction& c = a.output;
  const auto& stores = c.epilogue.stores;
  for (std::size_t i = 0; aligned && i < stores.size(); ++i) {
    const Operand& o = stores[i].to;
    const std::size_t n = c.batch_axes.size();
    const bool strided = std::all_of(o.kept.begin(), o.kept.begin() + static_cast<std::ptrdiff_t>(n) + 1,
                                     [](std::int64_t s) { return s % kSlotElements == 0; });
    if (is_half(o.dtype) && strided && o.kept[n + 1] == 1 && c.cols % kSlotElements == 0 &&
        o.offset % kSlotElements == 0)
      return static_cast<int>(i);
  }
  return -1;
}

bool has_few_batch_axes(const Attention& a) { return a.scores.batch_axes.size() <= kMostBatchAxes; }

/// Why weights made of a product of half types do not multiply values.
std::optional<std::string> why_no_weights(const Candidate& k) {
  const auto is_of_half_types = [&](NodeId n) { return k.graph[n].op == Op::matmul && is_half(k.graph[n].dtype); };
  if (std::ranges::none_of(k.nodes, is_of_half_types)) return std::nullopt;
  for (const NodeId n : k.nodes) {
    if (k.graph[n].op != Op::matmul) continue;
    const NodeId weights = k.folded.work[at(n)].reads[0].base;
    const bool is_inside = std::ranges::find(k.nodes, weights) != k.nodes.end();
    if (const DType t = k.graph[weights].dtype; is_inside && !is_half(t))
      return "multiplies values by weights of their half type, and these are " + std::string(name(t)) +
             ": cast what softmax gives to the type of the values";
  }
  return std::nullopt;
}

int values_of(std::int64_t cols) {
  for (const int n : {32, 64, 128, 192})
    if (cols <= n) return n;
  return 256;
}

}  // namespace

int AttentionCut::shared_bytes() const {
  const int depth_boxes = (depth + 63) / 64, value_boxes = (values + 63) / 64;
  const int operand_bytes = operand ? rows() * 128 * ((keys + 63) / 64) : 0;
  const int stage_bytes = keys * 128 * (depth_boxes + value_boxes) + operand_bytes;
  return rows() * 128 * depth_boxes + stages * (stage_bytes + 32) + 32;
}

std::string AttentionCut::text(const std::string& type) const {
  std::string text = "AttentionTile<" + type;
  for (const int n : {depth, values, keys, stages, groups}) text += ", " + std::to_string(n);
  return text + (operand ? ", true>" : ">");
}

/// What was measured fastest on an H100. Three warpgroups leave a thread 160 registers, which maps of scores may need.
AttentionCut attention_cut(const Attention& a, bool plain, bool operand, const Target& target) {
  const int depth = static_cast<int>(round_up(a.scores.depth, 16));
  AttentionCut c{depth, values_of(a.output.cols), 128, 2, 2, 1};
  const int most = std::max(c.depth, c.values);
  c.operand = operand;
  if (most > 192 || (most > 128 && operand))
    c.keys = 64;
  else if (most > 128)
    c.keys = 96;
  else if (most <= 64)
    c.stages = 3, c.groups = plain ? 3 : 2;
  if (a.scores.rows <= 64) c.groups = 1;
  const std::int64_t tiles = a.scores.batches * divide_up(a.scores.rows, std::int64_t{c.rows()});
  const std::int64_t blocks = divide_up(a.scores.cols, std::int64_t{c.keys});
  constexpr std::int64_t kLeastBlocks = 2;  // of a part
  c.parts = static_cast<int>(std::max<std::int64_t>(
      1, std::min(target.multiprocessors / std::max<std::int64_t>(tiles, 1), blocks / kLeastBlocks)));
  return c;
}

std::optional<std::string> why_no_attention_kernel(const Candidate& kernel) {
  if (auto why = why_no_weights(kernel)) return why;
  if (auto why = why_no_attention(kernel)) return why;
  const Attention a = *attention_of(kernel);
  const Contraction &scores = a.scores, &output = a.output;
  const Product &first = scores.products[0], &second = output.products[0];
  const DType t = first.left.dtype;
  if (!is_half(t) || first.right.dtype != t || second.right.dtype != t || kernel.graph[second.left.node].dtype != t)
    return "computes attention of float16 or bfloat16";
  if (std::min({scores.batches, scores.rows, scores.cols, scores.depth, output.cols}) == 0)
    return "computes products that have elements";
  if (scores.depth > kMostNumbers || output.cols > kMostNumbers) return "takes heads of 256 numbers at most";
  if (!has_few_batch_axes(a) || scores.batch_axes != output.batch_axes)
    return "takes three axes of batches at most, those of scores and values alike";
  if (std::max({scores.rows, scores.cols}) >= kMostExtent / 2 ||
      scores.rows / 64 + 1 >= kMostExtent / 256 / scores.batches)
    return "computes attention of less than 2^23 tiles";
  if (!is_boxed(first.left, first.left.depth, first.left.outer, scores.rows) ||
      !is_boxed(first.right, first.right.depth, first.right.outer, scores.cols) ||
      !is_boxed(second.right, second.right.outer, second.right.depth, scores.cols))
    return "reads queries, keys and values whose numbers lie side by side, from multiples of 16 bytes on";
  for (const NodeId n : kernel.nodes)
    if (kernel.graph[n].dtype == DType::kFloat64) return "computes no scores in float64";
  return std::nullopt;
}

Attention without_names(Attention a) {
  a.scores = without_names(std::move(a.scores)), a.output = without_names(std::move(a.output));
  return a;
}

AttentionKernel::AttentionKernel(const Attention& a, const Target& target, bool aligned)
    : entry_("kf_attention"),
      score_constants_(a.scores.epilogue.constants),
      output_constants_(a.output.epilogue.constants) {
  ParameterList score_parameters, output_parameters;
  operand_ = boxed_load(a.scores, aligned);
  ScorePrinter scores(a.scores, operand_, aligned, score_parameters);
  cut_ = attention_cut(a, scores.is_plain(), operand_ >= 0, target);
  bounds_ = scores.bounds();
  const Product &first = a.scores.products[0], &second = a.output.products[0];
  const Extents& batches = a.scores.batch_axes;
  matrices_[0] = box_of(first.left, a.scores.depth, first.left.outer, a.scores.rows, batches, cut_.rows());
  matrices_[1] = box_of(first.right, a.scores.depth, first.right.outer, a.scores.cols, batches, cut_.keys);
  matrices_[2] = box_of(second.right, a.output.cols, second.right.depth, a.scores.cols, batches, cut_.keys);
  if (operand_ >= 0) {
    const Factor f = factor_of(a.scores.epilogue.loads[at(operand_)]);
    matrices_[3] = box_of(f, a.scores.cols, f.outer, a.scores.rows, batches, cut_.rows());
  }
  Boxes boxes;
  result_ = slotted_store(a, aligned);
  if (result_ >= 0) boxes.results = {result_};
  EpiloguePrinter output(a.output, boxes, false, 1, output_parameters, {"Output", "OutputParameters", "Query", true});
  for (ParameterList* p : {&score_parameters, &output_parameters})
    if (p->cells().empty()) p->number("i64", "nothing", 0);
  score_cells_ = score_parameters.cells(), output_cells_ = output_parameters.cells();
  set_launch(a, target);
  set_numbers(a);
  bytes_ = scores_offset() + (score_cells_.size() + output_cells_.size()) * 8;
  bytes_ = (bytes_ + 63) / 64 * 64;
  source_ = "// " + a.output.epilogue.name +
            "\n#include \"device/attention.cuh\"\n#include \"device/partial.cuh\"\n\nnamespace "
            "kfusion::device::scalar {\n\nstruct ScoreParameters {\n" +
            score_parameters.members() + "};\nstruct OutputParameters {\n" + output_parameters.members() + "};\n\n" +
            scores.print() + "\n" + output.print() + "\nusing Tiling = " + cut_.text(storage_type(first.left.dtype)) +
            ";\nusing Parameters = Attention<ScoreParameters, OutputParameters>;\nstatic_assert(Tiling::kBytes == " +
            std::to_string(launch_.shared_bytes) + " && sizeof(Parameters) == " + std::to_string(bytes_) +
            ");\n\nextern \"C\" __global__ void __launch_bounds__(Tiling::kThreads, 1)\n    " + entry_ +
            "(const __grid_constant__ Parameters g) {\n  attend<Tiling, Scores, Output>(g);\n}\n\n}  // namespace "
            "kfusion::device::scalar\n";
}

void AttentionKernel::set_launch(const Attention& a, const Target& target) {
  const std::int64_t lines = a.scores.batches * divide_up(a.scores.rows, std::int64_t{cut_.rows()});
  const std::int64_t tiles = lines * cut_.parts;
  launch_.block[0] = static_cast<unsigned>(128 * (cut_.groups + 1));
  launch_.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(tiles, target.multiprocessors));
  launch_.shared_bytes = static_cast<std::size_t>(cut_.shared_bytes());
  launch_.standing_bytes = 8;
  if (cut_.parts == 1) return;
  const std::int64_t floats = cut_.values / 2 + 4, threads = 128 * cut_.groups;
  launch_.workspace_bytes = static_cast<std::size_t>(tiles * floats * threads * 4);
  launch_.standing_bytes += static_cast<std::size_t>(lines) * 4;
}

void AttentionKernel::set_numbers(const Attention& a) {
  const Extents& batches = a.scores.batch_axes;
  const auto add = [&](std::int64_t n) { numbers_.push_back(static_cast<std::int32_t>(n)); };
  const auto add_all = [&](const auto& all) { std::ranges::for_each(all, add); };
  add(a.scores.rows), add(a.scores.cols), add(a.output.cols);
  add_all(by_batch(batches, [&](std::size_t i) { return batches[i]; }, 1));
  for (const Factor* f : {&a.scores.products[0].left, &a.scores.products[0].right, &a.output.products[0].right})
    add_all(by_batch(batches, [&](std::size_t i) { return std::int64_t{f->batch_strides[i] != 0}; }, 0));
  const Extents operand =
      operand_ < 0 ? Extents(batches.size(), 0) : factor_of(a.scores.epilogue.loads[at(operand_)]).batch_strides;
  add_all(by_batch(batches, [&](std::size_t i) { return std::int64_t{operand[i] != 0}; }, 0));
  const std::int64_t row_tiles = divide_up(a.scores.rows, std::int64_t{cut_.rows()});
  add(row_tiles), add(cut_.parts), add(a.scores.batches * row_tiles * cut_.parts), add(0);
  result_strides_.assign(4, 0);
  if (result_ < 0) return;
  const Operand& o = a.output.epilogue.stores[at(result_)].to;
  std::ranges::copy(by_batch(batches, [&](std::size_t i) { return o.kept[i]; }, 0), result_strides_.begin());
  result_strides_[3] = o.kept[batches.size()];
  result_offset_bytes_ = o.offset * 2;
}

std::size_t AttentionKernel::scores_offset() const { return kHeadBytes + kNumbers * 4; }

void AttentionKernel::write_parameters(const AttentionAddresses& a, const double* parameters, const Memory& memory,
                                       const EncodeMatrix& encode, std::byte* to) const {
  std::memset(to, 0, bytes_);
  const std::byte* const arrays[] = {a.queries, a.keys, a.values, operand_ < 0 ? nullptr : a.score_loads[operand_]};
  for (std::size_t i = 0; i < matrices_.size(); ++i, to += kMatrixBytes)
    if (arrays[i]) encode(matrices_[i], arrays[i] + matrices_[i].offset_bytes, to);
  const std::byte* const pointers[] = {result_ < 0 ? nullptr : a.stores[result_] + result_offset_bytes_,
                                       memory.workspace, memory.standing};
  std::memcpy(to, pointers, sizeof pointers);
  to += sizeof pointers;
  std::memcpy(to, result_strides_.data(), 4 * 8);
  to += 4 * 8;
  std::memcpy(to, numbers_.data(), numbers_.size() * 4);
  to += kNumbers * 4;
  write_cells(score_cells_, score_constants_, a.score_loads, a.stores, parameters, memory, to);
  to += score_cells_.size() * 8;
  write_cells(output_cells_, output_constants_, a.output_loads, a.stores, parameters, memory, to);
}

}  // namespace kfusion::codegen
