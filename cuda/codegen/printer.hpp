// The generated struct F of device/rows.cuh: a kernel's operands, sweeps and row values as CUDA C++.
#pragma once
#include <string>
#include <vector>

#include "codegen/parameters.hpp"
#include "codegen/skeleton.hpp"
#include "kfusion/lower/schedule.hpp"

namespace kfusion::codegen {

inline std::string number(std::size_t i) { return std::to_string(i); }

/// Lines of text, indented by braces.
class Code {
 public:
  void line(const std::string& text, const std::string& comment = "");
  void open(const std::string& text) { line(text), ++depth_; }
  void close(const std::string& text = "}") { --depth_, line(text); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int depth_ = 0;
};

/// Exponentials that take the place in registers of a vector that x is computed from: its step, -1 where there is none;
/// the step of the maximum, and the sweep that keeps them.
struct Kept {
  Exponentials of{};
  int load = -1, first = -1, sweep = -1;
  std::vector<bool> sources{};  ///< by step: x, and the elements that it is computed from

  /// Later sweeps do without the step.
  bool replaces(int i) const { return sources[at(i)] || i == of.difference || (i == of.exp && of.divisor >= 0); }
};

class Printer {
 public:
  /// Declares what it reads in `parameters`.
  Printer(const Kernel& k, const Arrangement& a, const Traits& traits, ParameterList& parameters);

  /// struct Fused, over a Parameters p.
  std::string print();
  /// sizeof the largest PartialN.
  std::size_t partial_bytes() const;

 private:
  using Names = std::vector<std::string>;

  Names operand_names(const char* prefix, const std::vector<const Operand*>& operands) const;
  void declare_parameters(ParameterList& parameters);
  void declare_strides(ParameterList& parameters, const std::string& name, const Operand& o, Addressing addressing);

  // Expressions
  std::string offset(const std::string& name, const Extents& strides, const std::string& at, const char* prefix) const;
  std::string inner_offset(const std::string& name, const Operand& o, const std::string& at) const;
  std::string across(const std::string& name, const Operand& o) const;
  std::string vector_type(int load) const;
  std::string loaded(int load) const;
  std::string reference(int step) const;  ///< how a value is named where it is used
  std::string formula(const Step& step) const;
  bool shares_words(const Step& step) const;
  std::string divisor_type(int step) const;
  std::string divisor_of(int i) const;
  std::string iota(const Step& step, const std::string& inner) const;
  std::string which_of_vector(int step) const;
  std::string which_name(int step) const { return "which_" + names_[at(step)]; }
  std::string taken(const Step& step, const std::string& inner) const;
  std::string taken_vector(const Step& step) const;
  bool takes_vectors(const Step& step) const;
  std::string position_of(const Step& step) const;
  void print_taken_vectors(int sweep);

  // Pieces of the struct
  void print_types();
  void print_line();
  void print_spans();
  void print_packs();
  void print_frame(Code& members, Code& body) const;
  void print_edges();
  void print_vectors(const std::string& type, const std::vector<int>& loads, bool forget);
  void print_stored(std::size_t store);
  void print_sums();
  void print_put_sums();
  bool is_summed(std::size_t store, int sweep) const { return k_.stores[store].parts > 0 && s_.stored[store] == sweep; }
  bool sums(int sweep) const;
  void print_loading(const std::string& head, const std::string& type, const std::vector<int>& loads);
  void print_uncross(const std::string& type, const Names& crossed);
  void print_crossed(int sweep);
  void print_prefetch(const std::string& name, const std::vector<int>& loads);
  void print_stages(const std::vector<int>& loads);
  void print_slots(const std::vector<int>& loads);
  void print_start(const std::string& name, const std::string& bytes_of_all, const std::vector<int>& loads);
  void print_shared();
  void print_row_values();
  void print_planes();
  std::vector<int> plane_loads() const;
  std::size_t plane_of(int load) const;
  std::string staged(int load, std::size_t number) const;
  void print_partial(int sweep);
  void print_fetch(int sweep);
  void print_keep();
  void print_factor(int sweep);
  void print_sweep(int sweep);
  void print_elements(int sweep, bool look);
  void print_reductions(int sweep, bool look);
  void open_sweep(const std::string& what, int sweep);
  void print_lanes(int sweep, bool look);
  void print_finish(int sweep);
  void print_begin();
  void print_end();
  void print_row_steps(int ready);
  void assign(int i, const std::string& value);
  void print_store(int store);
  void open_lanes();  ///< a loop over the lanes where row values are arrays
  void close_lanes();

  std::vector<int> reductions(int sweep) const { return kfusion::reductions(k_, sweep); }
  std::string adds_nothing(int reduction) const;
  void print_picks(int sweep);
  void print_which(int sweep);
  void print_reduction(int i);
  std::string multiply_add(const std::string& sum, int i, const std::string& type) const;
  std::string pair_of(int reduction) const;
  Kept find_kept() const;
  bool has_room(int step, DType dtype) const;
  bool is_of_kept(int step) const;
  bool looks_at_pairs(int reduction) const;
  int half_of(int step) const;
  std::string lane_place() const;
  bool keeps(int sweep) const { return kept_.load >= 0 && sweep == kept_.sweep; }
  bool has_kept(int sweep) const { return kept_.load >= 0 && sweep > kept_.sweep; }
  /// The vector of a step that loads what is held.
  std::string held_name(int i) const { return "held." + loads_[at(step(i).index)]; }
  std::string seen_name(int i) const { return "held.seen_" + names_[at(i)]; }
  bool is_vector(int i) const {
    const Addressing addressing = a_.loads[at(i)];
    return addressing == Addressing::kDense || addressing == Addressing::kVector || addressing == Addressing::kStaged;
  }
  bool looks(int sweep) const;  ///< in two passes over what a thread has in registers
  bool takes_long(int step) const;
  std::vector<int> seen(int sweep) const;
  bool batches(int sweep) const { return !seen(sweep).empty(); }  ///< both passes go over one batch after the other
  std::string stored(const Store& store) const;
  std::vector<int> loads_of(int sweep, bool held) const;
  std::vector<int> fetched_later() const;
  /// Members that take vectors of kWidth elements, and of one where a row has edges.
  void print_template() {
    if (a_.framed()) out_.line("template <int kN = kWidth>");
  }
  std::string of_lanes(const std::string& type) const { return a_.framed() ? type + "Of<kN>" : type; }
  const Step& step(int i) const { return k_.step(i); }
  bool is_row(int i) const { return step(i).level == Level::kRow; }
  const Operand& load(int i) const { return k_.loads[static_cast<std::size_t>(i)]; }
  /// Number of elements in a row; a compile-time constant for very short rows.
  std::string elements() const { return a_.spans ? std::to_string(a_.inner[0]) : "p.inner.size"; }
  bool columns() const { return a_.traversal == Traversal::kColumns; }
  std::string lane() const { return columns() ? "[j]" : ""; }
  std::string partial(int i) const { return (columns() ? "part.column[j]." : "part.") + names_[at(i)]; }
  std::string type_of(int i) const { return compute_type(step(i).dtype); }

  const Kernel& k_;
  const Arrangement& a_;
  const Schedule& s_;
  const Traits& traits_;
  std::string lanes_;  ///< elements of a vector
  Kept kept_;
  Names names_;                    ///< by step
  Names loads_, stores_, tables_;  ///< by operand
  Code out_;
};

}  // namespace kfusion::codegen
