#include "cpu/codegen/form/form_key.hpp"

#include <utility>

#include "cpu/codegen/form/column_finds.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/form/row_finds.hpp"

namespace kfusion::cpu::ir {
namespace {

class Key {
 public:
  explicit Key(const Form& form) : form_(form) {
    for (const std::string* s : {&form.target.triple, &form.target.cpu, &form.target.features}) all_.append(*s) += '\n';
    put_form();
    put_decisions();
    for (const auto* layouts : {&form.loads, &form.iotas, &form.tables, &form.stores}) {
      put(layouts->size());
      for (const Layout& p : *layouts) put_layout(p);
    }
    put_kernel();
  }
  std::string take() { return std::move(all_); }

 private:
  /// Eight bytes each: keys are short-lived.
  template <class... T>
  void put(T... numbers) {
    const std::int64_t all[] = {static_cast<std::int64_t>(numbers)...};
    all_.append(reinterpret_cast<const char*>(all), sizeof all);
  }
  void put(const std::vector<int>& numbers) {
    put(numbers.size());
    for (const int n : numbers) put(n);
  }

  // Structs are taken apart so that one with another member does not compile.
  void put_form() {
    const auto& [streams, axes, row_axes, lanes, registers, across, in_tiles, together, chains, fetches, fetches_near,
                 pages_in_turn, row_by_row, has_moments, joins_rows, in_pieces] = static_cast<const FormFacts&>(form_);
    put(streams, axes, row_axes, lanes, registers, across, in_tiles, together, chains, fetches, fetches_near,
        pages_in_turn, row_by_row, has_moments, joins_rows, in_pieces, form_.operands, form_.takes_pairs(),
        form_.begins_with_registers(), joins_rows ? form_.registers_of_row() : 0);
    for (int s = 0; s < std::ssize(form_.kernel.steps); ++s) put(form_.reach(s), form_.along(s));
  }
  /// What writers decide by numbers of the kernel.
  void put_decisions() {
    const Kernel& k = form_.kernel;
    put(k.cols() <= kLongestRow);
    for (const Search& s : column_searches(k)) put(s.reduction);
    for (int s = 0; s < std::ssize(k.steps); ++s)
      if (k.step(s).kind == StepKind::kReduce)
        put(search_of_chunk(form_, s).has_value(), is_searched_for(form_, s), pick_of_one(form_, s).has_value());
  }
  void put_layout(const Layout& p) {
    const auto& [operand, item, array, stored, reach, by_rows, by_runs, summed, is_table, copied, along, repeats,
                 transposed, row_elements, first_integer, number] = p;
    static_cast<void>(operand);  // strides and offsets are numbers of a call
    put(item, array, stored, reach, by_rows, by_runs, summed, is_table, copied, along, repeats, transposed,
        row_elements, first_integer, number);
  }
  void put_kernel() {
    const Kernel& k = form_.kernel;
    put(k.kind, k.kept.size(), k.reduced.size(), k.rough, k.parts() > 0, k.steps.size());
    for (const Step& s : k.steps) put_step(s);
    put(k.constants.size());
    for (const Constant& c : k.constants) put(c.dtype);
    for (const Operand& o : k.loads) put(o.dtype);
    for (const Table& t : k.tables) put(t.from.dtype, t.positions.nonnegative);
    for (const Store& s : k.stores) put(s.step, s.to.dtype, s.parts > 0);
    put(k.pairs.size());
    for (const Pair& p : k.pairs) put(p.kind, p.first, p.second);
    for (const Schedule* s : {&k.separate, &k.paired}) put(s->ready), put(s->stored), put(s->sweeps);
    put(k.picks.size(), k.searches.size(), k.exponentials.size());
    for (const Pick& p : k.picks) put(p.reduction, p.equal, p.value, p.otherwise);
    for (const Search& s : k.searches) put(s.reduction, s.x, s.number, s.place, s.beyond, s.nan);
    for (const Exponentials& e : k.exponentials) put(e.pair, e.exp, e.difference, e.x, e.divisor);
  }
  void put_step(const Step& s) {
    put(s.kind, s.op, s.dtype, s.from, s.level, s.index, s.pair);
    put(s.arguments);
    const auto& [quick, weight, row_quotient, divisor, quick_divisor, quick_quotient, random_block, products, tanh,
                 place] = s.is;
    put(quick, weight, row_quotient, divisor, quick_divisor, quick_quotient, random_block, products[0], products[1],
        tanh, place);
  }

  const Form& form_;
  std::string all_;
};

}  // namespace

std::string key_of(const Form& form) { return Key(form).take(); }

}  // namespace kfusion::cpu::ir
