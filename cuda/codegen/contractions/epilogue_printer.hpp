// The generated struct of a product's kernel: F of device/contract_stored.cuh and contract_reduced.cuh.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "codegen/parameters.hpp"
#include "codegen/printer.hpp"
#include "kfusion/lower/contraction.hpp"

namespace kfusion::codegen {

/// How a product's kernel gets at what its epilogue reads and stores; the rest it loads and stores element by element.
struct Boxes {
  std::vector<int> vectors{};   ///< loads along the columns that arrive with slices
  std::vector<int> columns{};   ///< steps of a column that are computed once for a tile (column_values.hpp)
  std::vector<int> operands{};  ///< loads that come by boxes
  std::vector<int> results{};   ///< stores that leave by boxes

  bool is_operand(int load) const { return std::ranges::count(operands, load) > 0; }
  bool is_result(int store) const { return std::ranges::count(results, store) > 0; }
};

/// The store whose elements store `sums` has the sums of (Store::parts); -1 where there is none.
int summed_store(const Kernel& epilogue, int sums);

/// What the text calls things.
struct EpilogueNames {
  std::string fused = "Fused", parameters = "Parameters", point = "Point";
  bool several_batches = false;  ///< the point's batch is an array, of an index for each of the batches' axes
};

/// An operand's strides along batches, a tile's rows and its columns.
struct TileStrides {
  std::int64_t batch, row, col;
};
/// Rows of a tile are what is kept, where the epilogue reduces; else a product's rows, or where it is `turned` its
/// columns.
TileStrides tile_strides(const Operand& o, bool turned);

/// 4-byte words of what a row that is reduced keeps: the size of the generated State.
std::size_t state_words(const Kernel& epilogue);

class EpiloguePrinter {
 public:
  /// Declares what it reads in `parameters`, and stores, but of what becomes weights (Kernel::rough). `parts`: into how
  /// many a row is cut.
  EpiloguePrinter(const Contraction& c, const Boxes& boxes, bool turned, int parts, ParameterList& parameters,
                  EpilogueNames names = {});

  std::string print();

  /// The result by boxes that the sums (Store::parts) are of; nothing where they are of another value, or it has sums
  /// already.
  std::optional<std::size_t> sums_box(int store) const;

 protected:
  const Step& step(int i) const { return k_.step(i); }
  bool is_product(int i) const {
    return step(i).kind == StepKind::kLoad && c_.product_of(k_.loads[at(step(i).index)]) >= 0;
  }
  std::string type_of(int i) const { return compute_type(step(i).dtype); }
  /// The pair that a reduction is in; nullptr where it stands alone.
  const Pair* pair_of(int i) const;
  std::string member_type(const Pair& p) const;
  std::string part_of(const Pair& p, int reduction) const;
  bool is_reduction(int i) const { return step(i).kind == StepKind::kReduce; }

  void name_all();
  void declare_parts(ParameterList& parameters, int parts);
  void declare_loads(ParameterList& parameters);
  void declare_stores(ParameterList& parameters);
  void declare_constants(ParameterList& parameters);
  void declare_strides(ParameterList& parameters, const std::string& name, const Operand& o);
  struct Along {
    std::string index, suffix;
    std::int64_t stride;
  };
  std::vector<Along> axes_of(const Operand& o, const std::string& col) const;
  std::string offset(const std::string& name, const Operand& o, const std::string& col) const;
  std::string reference(int i) const;
  std::string value(int i, const std::string& col, const std::string& inside) const;
  std::string formula(const Step& s) const;
  std::string multiply_add(const Step& s) const;

  bool is_of_column(int i) const { return std::ranges::count(boxes_.columns, i) > 0; }
  std::vector<int> needed(const std::vector<int>& of, Level level, bool with_columns = true) const;
  void print_steps(const std::vector<int>& steps, const std::string& col, const std::string& inside);
  /// A loop over two neighbours, in which random words come from blocks that serve both.
  void open_pair(const std::vector<int>& steps);
  void close_pair();
  void print_boxes();
  void print_column();
  void print_map();
  bool is_sums(int store) const { return k_.stores[at(store)].parts > 0; }
  const Pick* pick_of(int reduction) const;
  void print_pick(const Pick& pick);
  /// A pick's steps: the iota, and what it is compared with.
  int place_of(const Pick& p) const { return step(p.equal).arguments[at(step(p.equal).is.place)]; }
  int position_of(const Pick& p) const { return step(p.equal).arguments[at(1 - step(p.equal).is.place)]; }
  void print_state();
  void print_fold();
  /// What a fold does: in a first pass over a tile's row, between, and in second passes, each where its condition
  /// holds.
  struct Fold {
    struct Second {
      std::string condition;
      std::vector<int> wanted;
      std::string line;
    };
    std::vector<int> taken;  ///< arguments of reductions
    std::vector<std::string> first, between;
    std::vector<Second> second;
    std::vector<Pick> picks;
  };
  void add_pair(Fold& f, const Pair& p) const;
  void add_single(Fold& f, int reduction) const;
  void print_pass(const std::vector<int>& elements, const std::vector<std::string>& reduced);
  void print_join();
  void print_end();

  const Contraction& c_;
  const Kernel& k_;
  const Boxes boxes_;
  const bool turned_, parts_;
  const EpilogueNames text_;
  std::vector<std::string> names_, loads_, iotas_, stores_;  ///< by step, load, iota and store
  Code out_;
  bool in_pair_ = false;
};

}  // namespace kfusion::codegen
