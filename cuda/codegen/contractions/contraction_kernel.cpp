#include "codegen/contractions/contraction_kernel.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "codegen/contractions/epilogue_printer.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/plan/sweeps.hpp"

namespace kfusion::codegen {
namespace {

constexpr int kThreads = 384;
constexpr std::int64_t kSlotElements = 8;  ///< of a half type in 16 bytes, by which the copy engine strides
constexpr std::int64_t kMostExtent = std::int64_t{1} << 31;
constexpr std::size_t kMatrixBytes = 128, kNumbers = 11;

bool strides_by_slots(std::int64_t stride) { return stride >= 0 && stride % kSlotElements == 0; }

/// Whether the copy engine can bring slices of it, of `extent` rows or columns.
bool is_boxed(const Factor& f, std::int64_t extent, std::int64_t depth) {
  const std::int64_t along = f.depth == 1 ? f.outer : f.depth, inner = f.depth == 1 ? depth : extent;
  const std::int64_t count = f.depth == 1 ? extent : depth;
  const bool dense = f.depth == 1 || f.outer == 1;
  const bool strided = count == 1 || (strides_by_slots(along) && along >= inner);
  return dense && strided && strides_by_slots(f.batch) && f.offset % kSlotElements == 0;
}

/// The same of what an epilogue reads or stores, along a tile's columns.
bool is_boxed(const Operand& o) {
  const TileStrides s = tile_strides(o, false);
  return is_half(o.dtype) && s.col == 1 && s.row > 0 && strides_by_slots(s.row) && strides_by_slots(s.batch) &&
         o.offset % kSlotElements == 0;
}

/// A product as tiles see it: where it is turned, or reduced along its rows, the factors change places.
struct Sides {
  std::int64_t rows, cols;
  bool swapped;

  explicit Sides(const Contraction& c, bool turned = false)
      : rows(c.rows), cols(c.cols), swapped(turned || c.reduces == Reduces::kRows) {
    if (swapped) std::swap(rows, cols);
  }
  const Factor& a(const Product& p) const { return swapped ? p.right : p.left; }
  const Factor& b(const Product& p) const { return swapped ? p.left : p.right; }
};

std::optional<std::string> no_reduction(const Candidate& k) {
  bool reduces = false;
  for (const NodeId n : k.nodes) {
    if (kind(k.graph[n].op) != OpKind::kReduce || k.folded.work[at(n)].kind != WorkKind::kReduce) continue;
    reduces = true;
    const Op op = k.graph[n].op;
    const DType from = k.graph[k.graph[n].arguments[0]].dtype;
    const bool simple = op == Op::max || op == Op::min || op == Op::sum || op == Op::mean;
    if (!simple || !is_float(from) || from == DType::kFloat64)
      return "takes maxima, minima, sums and means of a product's rows or columns";
  }
  if (!reduces) return std::nullopt;
  const Node& product = k.graph[*std::ranges::find_if(k.nodes, [&](NodeId n) { return k.graph[n].op == Op::matmul; })];
  if (std::ranges::any_of(k.stores, [&](NodeId n) { return k.graph[n].size() == product.size(); }))
    return "stores no elements of a product that it reduces";
  if (count_passes(k.graph, k.folded, k.nodes, k.stores, without_ones(product.shape)) > 1)
    return "goes over a product's elements once";
  return std::nullopt;
}

std::string identifier(const std::string& name) {
  std::string text = "kf_";
  for (const char c : name) text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return text;
}

/// Which of the epilogue's arrays come and leave by boxes.
Boxes boxes_of(const Contraction& c, bool aligned) {
  Boxes boxes;
  if (!aligned || c.reduces != Reduces::kNothing) return boxes;
  const Kernel& k = c.epilogue;
  for (std::size_t i = 0; i < k.stores.size() && boxes.result < 0; ++i)
    if (is_boxed(k.stores[i].to)) boxes.result = static_cast<int>(i);
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const Operand& o = k.loads[i];
    if (c.product_of(o) >= 0 || !is_half(o.dtype)) continue;
    const TileStrides s = tile_strides(o, false);
    const bool along = s.batch == 0 && s.row == 0 && s.col == 1 && o.offset % kSlotElements == 0;
    if (along && boxes.vectors.size() < 2) boxes.vectors.push_back(static_cast<int>(i));
    if (is_boxed(o) && boxes.operand < 0 && boxes.result >= 0) boxes.operand = static_cast<int>(i);
  }
  return boxes;
}

BoxedMatrix factor_box(const Factor& f, std::int64_t extent, std::int64_t depth, std::int64_t batches, int box_outer) {
  BoxedMatrix m;
  const bool along = f.depth == 1;
  const bool single = (along ? extent : depth) == 1;  // of no second row
  const std::int64_t outer = single  ? divide_up(along ? depth : extent, kSlotElements) * kSlotElements
                             : along ? f.outer
                                     : f.depth;
  m.offset_bytes = f.offset * 2;
  m.sizes[0] = along ? depth : extent, m.sizes[1] = along ? extent : depth;
  m.sizes[2] = f.batch == 0 ? 1 : batches;
  m.strides_bytes[0] = outer * 2;
  m.strides_bytes[1] = f.batch == 0 ? m.strides_bytes[0] * m.sizes[1] : f.batch * 2;
  m.box[0] = 64, m.box[1] = along ? box_outer : 64;
  m.swizzle_bytes = 128;
  m.is_bfloat16 = f.dtype == DType::kBFloat16;
  return m;
}

BoxedMatrix array_box(const Operand& o, const Sides& sides, std::int64_t batches, int chunk) {
  const TileStrides s = tile_strides(o, false);
  BoxedMatrix m;
  m.offset_bytes = o.offset * 2;
  m.sizes[0] = sides.cols, m.sizes[1] = sides.rows, m.sizes[2] = s.batch == 0 ? 1 : batches;
  m.strides_bytes[0] = s.row * 2, m.strides_bytes[1] = s.batch == 0 ? s.row * 2 * sides.rows : s.batch * 2;
  m.box[0] = chunk, m.box[1] = 64;
  m.swizzle_bytes = chunk * 2;
  m.is_bfloat16 = o.dtype == DType::kBFloat16;
  return m;
}

BoxedMatrix vector_box(const Operand& o, std::int64_t cols, int box) {
  BoxedMatrix m;
  m.offset_bytes = o.offset * 2;
  m.sizes[0] = cols;
  m.strides_bytes[0] = m.strides_bytes[1] = divide_up(cols, kSlotElements) * kSlotElements * 2;  // of no second row
  m.box[0] = box;
  m.is_bfloat16 = o.dtype == DType::kBFloat16;
  return m;
}

TileProblem problem_of(const Contraction& c, const Boxes& boxes) {
  const Sides sides(c);
  TileProblem p{c.batches, sides.rows, sides.cols, c.depth};
  p.products = static_cast<int>(c.products.size()), p.vectors = static_cast<int>(boxes.vectors.size());
  p.operand = boxes.operand >= 0, p.reduces = c.reduces != Reduces::kNothing;
  p.across_a = sides.a(c.products[0]).depth != 1, p.across_b = sides.b(c.products[0]).depth != 1;
  return p;
}

BoxedMatrix placed(BoxedMatrix m, BoxedMatrix::Of of, int index) {
  m.of = of, m.index = index;
  return m;
}

}  // namespace

std::optional<std::string> no_tensor_core_kernel(const Candidate& kernel) {
  if (auto why = no_contraction(kernel, {.lost_picks = true})) return why;
  const Contraction c = *products_of(kernel);
  const Sides sides(c);
  if (c.products.size() > (c.reduces == Reduces::kNothing ? 2u : 1u)) return "computes two products at most";
  const std::int64_t least = std::min({c.rows, c.cols, c.depth, c.batches});
  if (least == 0) return "computes products that have elements";
  const std::int64_t most = std::max({c.rows, c.cols, c.depth, c.batches});
  if (most >= kMostExtent || (c.rows / 16 + 1) * (c.cols / 16 + 1) >= kMostExtent / c.batches)
    return "computes products of less than 2^31 rows, columns and tiles";
  for (const Product& p : c.products) {
    if (!is_half(p.dtype) || p.left.dtype != p.dtype || p.right.dtype != p.dtype)
      return "computes products of float16 or bfloat16";
    if (!is_boxed(sides.a(p), sides.rows, c.depth) || !is_boxed(sides.b(p), sides.cols, c.depth))
      return "reads factors of which the rows begin at multiples of 16 bytes";
    const Product& first = c.products[0];
    if ((p.right.depth == 1) != (first.right.depth == 1) || p.right.batch != first.right.batch)
      return "computes products whose right factors lie alike";
  }
  return no_reduction(kernel);
}

ChosenTile predicted_tile(const Contraction& products, const Target& target) {
  return choose_tile(problem_of(products, {}), target);
}

void ContractionKernel::write_parameters(const ContractionAddresses& a, const double* parameters, const Memory& memory,
                                         const EncodeMatrix& encode, std::byte* to) const {
  using Of = BoxedMatrix::Of;
  std::memset(to, 0, bytes_);
  for (const BoxedMatrix& m : matrices_) {
    const auto i = static_cast<std::size_t>(m.index);
    const std::byte* array = m.of == Of::kLeft    ? a.left[i]
                             : m.of == Of::kRight ? a.right[i]
                             : m.of == Of::kLoad  ? a.loads[i]
                             : m.of == Of::kStore ? a.stores[i]
                                                  : nullptr;
    if (m.of != Of::kNothing) encode(m, array + m.offset_bytes, to);
    to += kMatrixBytes;
  }
  std::memcpy(to, numbers_.data(), numbers_.size() * sizeof numbers_[0]);
  to += (kNumbers * 4 + 7) / 8 * 8;
  write_cells(cells_, constants_, a.loads, a.stores, parameters, memory, to);
}

Contraction without_names(Contraction c) {
  c.epilogue = without_names(std::move(c.epilogue));
  return c;
}

ContractionKernel::ContractionKernel(const Contraction& c, const Target& target, bool aligned)
    : entry_(identifier(c.epilogue.name)), constants_(c.epilogue.constants) {
  Boxes boxes = boxes_of(c, aligned);
  const TileProblem problem = problem_of(c, boxes);
  tile_ = choose_tile(problem, target).tile;
  if (tile_.turned) boxes = {};
  const Sides sides(c, tile_.turned);
  const Factor &a = sides.a(c.products[0]), &b = sides.b(c.products[0]);
  const bool across_a = a.depth != 1, across_b = b.depth != 1, reduces = c.reduces != Reduces::kNothing;
  const int out = tile_.cols / problem.products, chunk = out % 64 == 0 ? 64 : 32;
  const std::int64_t tiles = divide_up(sides.cols, std::int64_t{out} * tile_.across);
  const std::int64_t steps = reduces ? divide_up(tiles, std::int64_t{reduced_parts(problem, tile_, target)}) : 1;
  const std::int64_t used_parts = divide_up(tiles, steps);
  const std::int64_t units_m = divide_up(sides.rows, std::int64_t{tile_.rows} * tile_.down);
  const std::int64_t units_n = c.batches * used_parts;

  using Of = BoxedMatrix::Of;
  const Of of_a = sides.swapped ? Of::kRight : Of::kLeft, of_b = sides.swapped ? Of::kLeft : Of::kRight;
  matrices_[0] = placed(factor_box(a, sides.rows, c.depth, c.batches, tile_.rows / tile_.across), of_a, 0);
  for (std::size_t i = 0; i < c.products.size(); ++i)
    matrices_[1 + i] = placed(factor_box(sides.b(c.products[i]), sides.cols, c.depth, c.batches,
                                         tile_.cols / std::max(problem.products, tile_.down)),
                              of_b, static_cast<int>(i));
  const Kernel& k = c.epilogue;
  if (boxes.result >= 0)
    matrices_[3] = placed(array_box(k.stores[at(boxes.result)].to, sides, c.batches, chunk), Of::kStore, boxes.result);
  if (boxes.operand >= 0)
    matrices_[4] = placed(array_box(k.loads[at(boxes.operand)], sides, c.batches, chunk), Of::kLoad, boxes.operand);
  for (std::size_t i = 0; i < boxes.vectors.size(); ++i)
    matrices_[5 + i] = placed(vector_box(k.loads[at(boxes.vectors[i])], sides.cols, out), Of::kLoad, boxes.vectors[i]);
  const bool operand_batched = boxes.operand >= 0 && tile_strides(k.loads[at(boxes.operand)], false).batch != 0;
  for (const std::int64_t n :
       {sides.rows, sides.cols, c.depth, std::int64_t{a.batch != 0}, std::int64_t{b.batch != 0},
        std::int64_t{operand_batched}, units_m, units_n, used_parts, steps, std::int64_t{tile_.group}})
    numbers_.push_back(static_cast<std::int32_t>(n));

  ParameterList parameters;
  EpiloguePrinter printer(c, boxes, tile_.turned, static_cast<int>(used_parts), parameters);
  cells_ = parameters.cells();
  const std::size_t before = kMatrices * kMatrixBytes + (kNumbers * 4 + 7) / 8 * 8;
  bytes_ = (before + std::max<std::size_t>(cells_.size() * 8, 1) + 63) / 64 * 64;

  launch_.block[0] = kThreads;
  launch_.cluster = static_cast<unsigned>(tile_.cluster());
  launch_.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(units_m * units_n, target.multiprocessors) *
                                          tile_.cluster());  // as many as may run at once, and more
  launch_.resident = true;
  launch_.shared_bytes = static_cast<std::size_t>(tile_.shared_bytes(static_cast<int>(boxes.vectors.size())));
  const bool in_parts = reduces && used_parts > 1;
  const std::size_t state_bytes =
      4 * static_cast<std::size_t>(std::ranges::count(k.steps, StepKind::kReduce, &Step::kind));
  if (in_parts) {
    launch_.workspace_bytes = state_bytes * static_cast<std::size_t>(c.batches * used_parts * sides.rows);
    launch_.standing_bytes = 4 * static_cast<std::size_t>(c.batches * units_m * tile_.down);
  }

  const std::string type = storage_type(c.products[0].dtype), family = reduces ? "Reduced" : "Stored";
  source_ =
      "// " + k.name + "\n#include \"device/contract_" + (reduces ? "reduced" : "stored") +
      ".cuh\"\n#include \"device/contract_memory.cuh\"\n#include \"device/partial.cuh\"\n\nnamespace "
      "kfusion::device::scalar {\n\nstruct Parameters {\n" +
      parameters.members() + "};\n\n" + printer.print() + "\nusing Tiling = " + tile_.text(type, across_a, across_b) +
      ";\nusing Epilogue = " + family +
      "<Tiling, Fused>;\nstatic_assert(Epilogue::SharedMemory::kBytes == " + std::to_string(launch_.shared_bytes) +
      " && sizeof(Contraction<Parameters>) == " + std::to_string(bytes_) + ");\n" +
      (in_parts ? "static_assert(sizeof(Fused::State) == " + std::to_string(state_bytes) + ");\n" : "") +
      "\nextern \"C\" __global__ void __launch_bounds__(" + std::to_string(kThreads) + ", 1)\n    " + entry_ +
      "(const __grid_constant__ Contraction<Parameters> g) {\n  contract<Tiling, Epilogue>(g);\n}\n\n}  // namespace "
      "kfusion::device::scalar\n";
}

}  // namespace kfusion::codegen
