#include "codegen/contractions/contraction_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "codegen/contractions/column_values.hpp"
#include "codegen/contractions/epilogue_printer.hpp"
#include "codegen/expression.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/partition/partial_sums.hpp"
#include "kfusion/plan/sweeps.hpp"

namespace kfusion::codegen {
namespace {

constexpr int kThreads = 384;
constexpr std::int64_t kSlotElements = 8;  ///< of a half type in 16 bytes, by which the copy engine strides
constexpr std::int64_t kMostExtent = std::int64_t{1} << 31;
constexpr std::size_t kMatrixBytes = 128;

bool strides_by_slots(std::int64_t stride) { return stride >= 0 && stride % kSlotElements == 0; }

/// Whether the copy engine can bring slices of it, of `extent` rows or columns.
bool is_boxed(const Factor& f, std::int64_t extent, std::int64_t depth) {
  const std::int64_t along = f.depth == 1 ? f.outer : f.depth, inner = f.depth == 1 ? depth : extent;
  const std::int64_t count = f.depth == 1 ? extent : depth;
  const bool dense = f.depth == 1 || f.outer == 1;
  const bool strided = count == 1 || (strides_by_slots(along) && along >= inner);
  return dense && strided && strides_by_slots(f.batch) && f.offset % kSlotElements == 0;
}

/// Whether the copy engine can bring or take slices of what an epilogue reads or stores, along a tile's columns.
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

std::optional<std::string> why_no_reduction(const Candidate& k) {
  bool reduces = false;
  for (const NodeId n : k.nodes) {
    if (kind(k.graph[n].op) != OpKind::kReduce || k.folded.work[at(n)].kind != WorkKind::kReduce) continue;
    reduces = true;
    const Op op = k.graph[n].op;
    const DType from = k.graph[k.graph[n].arguments[0]].dtype;
    const bool simple = op == Op::max || op == Op::min || op == Op::sum || op == Op::mean;
    if (op == Op::min && from == DType::kInt32 && merged_with(k.graph, k.folded, k.nodes, n) >= 0) continue;
    if (!simple || !is_float(from) || from == DType::kFloat64)
      return "takes maxima, minima, their positions, sums, means and variances of a product's rows or columns";
  }
  if (!reduces) return std::nullopt;
  const Node& product = k.graph[*std::ranges::find_if(k.nodes, [&](NodeId n) { return k.graph[n].op == Op::matmul; })];
  if (std::ranges::any_of(k.stores, [&](NodeId n) { return k.graph[n].size() == product.size(); }))
    return "stores no elements of a product that it reduces";
  if (count_passes(k.graph, k.folded, k.nodes, k.stores, without_ones(product.shape)) > 1)
    return "goes over a product's elements once";
  return std::nullopt;
}

/// Which of the epilogue's arrays come and leave by boxes.
Boxes boxes_of(const Contraction& c, bool aligned) {
  Boxes boxes;
  if (!aligned || c.reduces != Reduces::kNothing) return boxes;
  const Kernel& k = c.epilogue;
  for (std::size_t i = 0; i < k.stores.size() && boxes.results.size() < kMostBoxes; ++i)
    if (k.stores[i].parts == 0 && is_boxed(k.stores[i].to)) boxes.results.push_back(static_cast<int>(i));
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const Operand& o = k.loads[i];
    if (c.product_of(o) >= 0 || !is_half(o.dtype)) continue;
    const TileStrides s = tile_strides(o, false);
    const bool along = s.batch == 0 && s.row == 0 && s.col == 1 && o.offset % kSlotElements == 0;
    if (along && boxes.vectors.size() < 2) boxes.vectors.push_back(static_cast<int>(i));
    if (is_boxed(o) && boxes.operands.size() < kMostBoxes && !boxes.results.empty())
      boxes.operands.push_back(static_cast<int>(i));
  }
  return boxes;
}

/// Arrays of the result's size that come and leave otherwise.
int loose_arrays(const Contraction& c, const Boxes& boxes) {
  if (c.reduces != Reduces::kNothing) return 0;
  const auto is_whole = [](const Operand& o) {
    const TileStrides s = tile_strides(o, false);
    return s.row != 0 && s.col != 0;
  };
  int count = 0;
  for (int i = 0; i < std::ssize(c.epilogue.stores); ++i)
    count += !boxes.is_result(i) && is_whole(c.epilogue.stores[at(i)].to);
  for (int i = 0; i < std::ssize(c.epilogue.loads); ++i) {
    const Operand& o = c.epilogue.loads[at(i)];
    count += !boxes.is_operand(i) && c.product_of(o) < 0 && is_whole(o);
  }
  return count;
}

BoxedMatrix factor_box(const Factor& f, std::int64_t extent, std::int64_t depth, std::int64_t batches, int box_outer) {
  BoxedMatrix m;
  const bool along = f.depth == 1;
  const bool single = (along ? extent : depth) == 1;  // of no second row
  const std::int64_t outer = single ? round_up(along ? depth : extent, kSlotElements) : along ? f.outer : f.depth;
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
  m.strides_bytes[0] = m.strides_bytes[1] = round_up(cols, kSlotElements) * 2;  // of no second row
  m.box[0] = box;
  m.is_bfloat16 = o.dtype == DType::kBFloat16;
  return m;
}

TileProblem problem_of(const std::vector<Contraction>& beside, const std::vector<Boxes>& boxes) {
  const Contraction& c = beside[0];
  const Sides sides(c);
  TileProblem p{c.batches, sides.rows, sides.cols, c.depth};
  p.products = static_cast<int>(c.products.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Boxes& b = boxes[i];
    p.loose = std::max(p.loose, loose_arrays(beside[i], b));
    p.vectors = std::max(p.vectors, static_cast<int>(b.vectors.size()));
    p.column_values = std::max(p.column_values, static_cast<int>(b.columns.size()));
  }
  p.operands = static_cast<int>(boxes[0].operands.size()), p.results = static_cast<int>(boxes[0].results.size());
  p.reduces = c.reduces != Reduces::kNothing;
  p.across_a = sides.a(c.products[0]).depth != 1, p.across_b = sides.b(c.products[0]).depth != 1;
  const bool one_left = have_one_left(beside);
  for (std::size_t i = 0; beside.size() > 1 && i < beside.size(); ++i)
    if (one_left)
      p.beside.push_back(beside[i].cols);
    else
      p.apart.emplace_back(beside[i].rows, beside[i].cols);
  return p;
}

/// Columns are summed in boxes: else what is stored would be read again by a kernel that the plan does not know.
std::optional<std::string> why_no_sums(const Candidate& kernel, const Contraction& c) {
  const bool fit = std::ranges::all_of(kernel.nodes, [&](NodeId n) {
    if (kernel.graph[n].op != Op::partial_sums) return true;
    const NodeId summed = kernel.folded.work[at(n)].reads[0].base;
    return kernel.graph[summed].dtype == c.products[0].dtype && strides_by_slots(c.cols);
  });
  return fit ? std::nullopt : std::optional<std::string>("sums columns of results that leave by boxes");
}

/// Why there is no kernel for a group that is one contraction.
std::optional<std::string> why_no_kernel_of_one(const Candidate& kernel) {
  if (auto why = why_no_contraction(
          kernel, {.variances = true, .positions = true, .rows_of_sums = kRowsOfTile, .lost_picks = true}))
    return why;
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
  if (auto why = why_no_sums(kernel, c)) return why;
  return why_no_reduction(kernel);
}

std::string numbered(const std::string& what, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + what + number(i);
  return text;
}

}  // namespace

std::optional<std::string> why_no_tensor_core_kernel(const Candidate& kernel) {
  const std::vector<Chain> chains = chains_of(kernel);
  if (chains.size() == 1) return why_no_kernel_of_one(kernel);
  if (chains.size() > kMostBeside) return "computes four products beside one another at most";
  if (auto why = why_no_products_beside(kernel, chains)) return why;
  for (const Chain& chain : chains)
    if (auto why = why_no_kernel_of_one(chain.of(kernel))) return why;
  const std::vector<Contraction> all = products_beside(kernel);
  const Product& first = all[0].products[0];
  const bool alike = std::ranges::all_of(all, [&](const Contraction& c) {
    const Product& p = c.products[0];
    return (p.left.depth == 1) == (first.left.depth == 1) && (p.right.depth == 1) == (first.right.depth == 1) &&
           p.dtype == first.dtype;
  });
  return alike ? std::nullopt : std::optional<std::string>("computes products whose factors lie alike");
}

ChosenTile predicted_tile(const std::vector<Contraction>& products, const EpilogueArrays& moved, const Target& target) {
  TileProblem problem = problem_of(products, {Boxes{}});
  problem.loose = moved.loose, problem.operands = moved.operands, problem.results = moved.results;
  return choose_tile(problem, target);
}

std::size_t ContractionKernel::epilogue_offset() const {
  return matrices_.size() * kMatrixBytes + (numbers_.size() * 4 + 7) / 8 * 8;
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
  to += (numbers_.size() * 4 + 7) / 8 * 8;
  for (const Epilogue& e : epilogues_) {
    write_cells(e.cells, e.constants, a.loads + e.first_load, a.stores + e.first_store, parameters, memory, to);
    to += e.cells.size() * 8;
  }
}

Contraction without_names(Contraction c) {
  c.epilogue = without_names(std::move(c.epilogue));
  return c;
}

std::vector<Contraction> without_names(std::vector<Contraction> all) {
  for (Contraction& c : all) c = without_names(std::move(c));
  return all;
}

/// Makes a kernel, member by member.
class ContractionKernel::Maker {
 public:
  Maker(const std::vector<Contraction>& all, const Target& target, bool aligned, ContractionKernel& k)
      : all_(all), c_(all[0]), target_(target), k_(k) {
    for (const Contraction& c : all) {
      Boxes& b = boxes_.emplace_back(boxes_of(c, aligned));
      b.columns = column_values(c, b);
      if (!b.columns.empty()) b.vectors.clear();
    }
    const bool boxed = std::ranges::all_of(boxes_, [](const Boxes& b) { return !b.results.empty(); });
    for (Boxes& b : boxes_) {
      if (all.size() > 1) b.operands.clear(), b.results.resize(std::min<std::size_t>(b.results.size(), 1));
      if (!boxed) b.results.clear(), b.operands.clear();
    }
    problem_ = problem_of(all, boxes_);
    k.tile_ = choose_tile(problem_, target).tile;
    if (k.tile_.turned) std::ranges::fill(boxes_, Boxes{});
    reduces_ = c_.reduces != Reduces::kNothing;
  }

  void run() {
    cut();
    add_matrices();
    add_numbers();
    add_epilogues();
    set_launch();
    set_source();
  }

 private:
  using Of = BoxedMatrix::Of;

  const Tile& tile() const { return k_.tile_; }
  bool is_beside() const { return all_.size() > 1; }
  /// Boxes at a place of a tile: Stored::kBoxes.
  std::size_t boxes() const { return std::max({boxes_[0].operands.size(), boxes_[0].results.size(), std::size_t{1}}); }
  bool is_apart() const { return !problem_.apart.empty(); }
  int out_columns() const { return tile().cols / problem_.products; }  ///< of a tile
  Sides sides(const Contraction& c) const { return Sides(c, tile().turned); }
  bool across_a() const { return sides(c_).a(c_.products[0]).depth != 1; }
  bool across_b() const { return sides(c_).b(c_.products[0]).depth != 1; }

  /// Tiles along the columns of one of the products beside one another.
  std::int64_t tiles_of(const Contraction& c) const {
    return divide_up(c.cols, tile().turned ? tile().rows * tile().down : out_columns() * tile().across);
  }

  /// Tiles along its rows and columns.
  std::int64_t units_of(const Contraction& c) const {
    return divide_up(c.rows, std::int64_t{tile().rows} * tile().down) * tiles_of(c);
  }

  void cut() {
    if (is_apart()) {
      units_m_ = 0;
      for (const Contraction& c : all_) units_m_ += units_of(c);
      return;
    }
    const Sides s = sides(c_);
    std::int64_t beside = 0;
    for (const Contraction& c : all_) beside += tiles_of(c);
    const std::int64_t tiles =
        is_beside() && !tile().turned ? beside : divide_up(s.cols, std::int64_t{out_columns()} * tile().across);
    steps_ = reduces_ ? divide_up(tiles, std::int64_t{reduced_parts(problem_, tile(), target_)}) : 1;
    parts_ = divide_up(tiles, steps_);
    units_m_ = is_beside() && tile().turned ? beside : divide_up(s.rows, std::int64_t{tile().rows} * tile().down);
    units_n_ = c_.batches * parts_;
  }

  void add(Of of, std::size_t index, BoxedMatrix m) {
    m.of = of, m.index = static_cast<int>(index);
    k_.matrices_.push_back(std::move(m));
  }

  /// A matrix for each of `of`, and nothing for the rest of `places`.
  template <class AddOne>
  void add_each(const std::vector<int>& of, std::size_t places, AddOne add_one) {
    for (const int i : of) add_one(at(i));
    for (std::size_t i = of.size(); i < places; ++i) add(Of::kNothing, 0, {});
  }

  BoxedMatrix factor_a(const Contraction& c) const {
    const Sides s = sides(c);
    return factor_box(s.a(c.products[0]), s.rows, c.depth, c.batches, tile().rows / tile().across);
  }
  BoxedMatrix factor_b(const Contraction& c, std::size_t product) const {
    const Sides s = sides(c);
    return factor_box(s.b(c.products[product]), s.cols, c.depth, c.batches,
                      tile().cols / std::max(problem_.products, tile().down));
  }

  /// Those of device::Contraction, in its order.
  void add_matrices() {
    const bool swapped = sides(c_).swapped;
    const Of of_a = swapped ? Of::kRight : Of::kLeft, of_b = swapped ? Of::kLeft : Of::kRight;
    for (std::size_t i = 0; i < all_.size(); ++i) add(of_a, i, factor_a(all_[i]));
    if (is_beside())
      for (std::size_t i = 0; i < all_.size(); ++i) add(of_b, i, factor_b(all_[i], 0));
    else
      for (std::size_t i = 0; i < 2; ++i) {
        if (i < c_.products.size())
          add(of_b, i, factor_b(c_, i));
        else
          add(Of::kNothing, 0, {});
      }
    std::vector<std::size_t> first_load, first_store;
    std::size_t loads = 0, stores = 0;
    for (const Contraction& c : all_) {
      first_load.push_back(loads), first_store.push_back(stores);
      loads += c.epilogue.loads.size() + c.epilogue.tables.size(), stores += c.epilogue.stores.size();
    }
    const int chunk = out_columns() % 64 == 0 ? 64 : 32;
    const auto array = [&](std::size_t i, const Operand& o) { return array_box(o, sides(all_[i]), c_.batches, chunk); };
    for (std::size_t i = 0; i < all_.size(); ++i)
      add_each(boxes_[i].results, boxes(), [&](std::size_t result) {
        add(Of::kStore, first_store[i] + result, array(i, all_[i].epilogue.stores[result].to));
      });
    add_each(boxes_[0].operands, boxes(),
             [&](std::size_t operand) { add(Of::kLoad, operand, array(0, c_.epilogue.loads[operand])); });
    for (std::size_t i = 0; i < all_.size(); ++i)
      add_each(boxes_[i].vectors, 2, [&](std::size_t load) {
        add(Of::kLoad, first_load[i] + load,
            vector_box(all_[i].epilogue.loads[load], sides(all_[i]).cols, out_columns()));
      });
    for (std::size_t i = 0; i < all_.size(); ++i)
      k_.epilogues_.push_back({{}, all_[i].epilogue.constants, first_load[i], first_store[i]});
  }

  void add_numbers() {
    const Sides s = sides(c_);
    const Product& p = c_.products[0];
    std::vector<std::int64_t> numbers = {s.rows, s.cols, c_.depth, s.a(p).batch != 0, s.b(p).batch != 0};
    for (std::size_t m = 0; m < boxes(); ++m) {
      const bool comes = m < boxes_[0].operands.size();
      numbers.push_back(comes && tile_strides(c_.epilogue.loads[at(boxes_[0].operands[m])], false).batch != 0);
    }
    numbers.insert(numbers.end(), {units_m_, units_n_, parts_, steps_, tile().group});
    std::int64_t first = 0;
    for (const Contraction& c : all_) numbers.push_back(first), first += is_apart() ? units_of(c) : tiles_of(c);
    for (const Contraction& c : all_) numbers.push_back(c.cols);
    for (const Contraction& c : all_) numbers.push_back(c.rows);
    for (const std::int64_t n : numbers) k_.numbers_.push_back(static_cast<std::int32_t>(n));
  }

  void add_epilogues() {
    std::size_t cells = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const std::string which = is_beside() ? number(i) : "";
      ParameterList parameters;
      EpiloguePrinter printer(all_[i], boxes_[i], tile().turned, static_cast<int>(parts_), parameters,
                              {"Fused" + which, "Parameters" + which});
      k_.epilogues_[i].cells = parameters.cells();
      cells += parameters.cells().size();
      for (int s = 0; s < std::ssize(all_[i].epilogue.stores); ++s)
        if (all_[i].epilogue.stores[at(s)].parts > 0 && !printer.sums_box(s))
          k_.sums_apart_.push_back({summed_store(all_[i].epilogue, s), s});
        else if (all_[i].epilogue.stores[at(s)].parts > 0)
          sums_ = true;
      text_ += "struct Parameters" + which + " {\n" + parameters.members() + "};\n\n" + printer.print() + "\n";
    }
    const std::size_t numbers_end = matrices_bytes() + k_.numbers_.size() * 4;  // where a struct without members lies
    k_.bytes_ = ((cells > 0 ? k_.epilogue_offset() + cells * 8 : numbers_end + 1) + 63) / 64 * 64;
  }

  void set_launch() {
    Launch& l = k_.launch_;
    l.block[0] = kThreads;
    l.cluster = static_cast<unsigned>(tile().cluster());
    l.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(units_m_ * units_n_, target_.multiprocessors) *
                                      tile().cluster());  // as many as may run at once, and more
    l.resident = true;
    if (tile().turned) problem_.vectors = problem_.column_values = 0;
    l.shared_bytes =
        static_cast<std::size_t>(tile().shared_bytes(problem_.vectors, problem_.column_values, problem_.products));
    if (!in_parts()) return;
    l.workspace_bytes = state_bytes() * static_cast<std::size_t>(c_.batches * parts_ * sides(c_).rows);
    l.standing_bytes = 4 * static_cast<std::size_t>(c_.batches * units_m_ * tile().down);
  }

  std::size_t matrices_bytes() const { return k_.matrices_.size() * kMatrixBytes; }
  bool in_parts() const { return reduces_ && parts_ > 1; }
  std::size_t state_bytes() const { return 4 * state_words(c_.epilogue); }

  void set_source() {
    const std::string type = storage_type(c_.products[0].dtype), family = reduces_ ? "Reduced" : "Stored";
    std::string names;
    for (const Contraction& c : all_) names += (names.empty() ? "" : "_") + c.epilogue.name;
    k_.entry_ = identifier("kf_", names);
    k_.source_ =
        "// " + names + "\n#include \"device/contract_" + (reduces_ ? "reduced" : "stored") +
        ".cuh\"\n#include \"device/contract_memory.cuh\"\n#include \"device/partial.cuh\"\n\nnamespace "
        "kfusion::device::scalar {\n\n" +
        text_ + "using Tiling = " + tile().text(type, across_a(), across_b(), is_beside(), sums_, is_apart()) +
        ";\nusing Epilogue = " + family + "<Tiling, " + (is_beside() ? numbered("Fused", all_.size()) : "Fused") +
        ">;\nstatic_assert(Epilogue::SharedMemory::kBytes == " + std::to_string(k_.launch_.shared_bytes) +
        " && sizeof(Epilogue::Given) == " + std::to_string(k_.bytes_) + ");\n" +
        (in_parts() ? "static_assert(sizeof(Fused::State) == " + std::to_string(state_bytes()) + ");\n" : "") +
        "\nextern \"C\" __global__ void __launch_bounds__(" + std::to_string(kThreads) + ", 1)\n    " + k_.entry_ +
        "(const __grid_constant__ Epilogue::Given g) {\n  contract<Tiling, Epilogue>(g);\n}\n\n}  // namespace "
        "kfusion::device::scalar\n";
  }

  const std::vector<Contraction>& all_;
  const Contraction& c_;  ///< the first one
  const Target& target_;
  ContractionKernel& k_;
  std::vector<Boxes> boxes_;
  TileProblem problem_{};
  bool reduces_ = false, sums_ = false;  ///< `sums_`: of columns of what leaves by boxes
  std::int64_t steps_ = 1, parts_ = 1, units_m_ = 1, units_n_ = 1;
  std::string text_;
};

ContractionKernel::ContractionKernel(const std::vector<Contraction>& beside, const Target& target, bool aligned) {
  Maker(beside, target, aligned, *this).run();
}

}  // namespace kfusion::codegen
