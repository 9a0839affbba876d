#include "cpu/codegen/elements/addresses.hpp"

namespace kfusion::cpu::ir {

Addresses::Addresses(const Form& form) : form_(form) {
  for (int f = 0; f <= static_cast<int>(Field::kColumns); ++f) fields_.push_back(pointer_at({"%call"}, f));
  for (const auto* all : {&form.loads, &form.iotas, &form.tables, &form.stores})
    for (const Layout& p : *all) {
      places_.push_back(&p);
      const Number offset = integer(form.offset(p));
      const Field of = p.stored ? Field::kStores : Field::kLoads;
      const Number part =
          p.summed ? Number("%begin") * runs() * integer(form.extent(form.axes - 1)) * p.item : Number(0);
      base_.push_back(p.is_iota() ? offset.name() : (pointer_at(field(of), p.array) + offset + part).name);
    }
  first_ = row_ = numbers_ = base_;
  rows_ = nest(0, form.row_axes, &Layout::by_rows);
  runs_ = nest(form.row_axes, form.axes - 1, &Layout::by_runs);
}

Addresses::Nest Addresses::nest(int first, int end, bool Layout::* moves) const {
  Nest n{first, end};
  if (first == end) return n;
  for (const Layout* p : places_)
    if (p->*moves) n.moved.push_back(p);
  n.at = room(8 * form_.operands);
  n.indices = room(8 * (end - first));
  return n;
}

void Addresses::go_to(const Nest& n, const std::vector<std::string>& from, const Number& index) {
  if (n.first == n.end) return;
  std::vector<Number> at;
  for (const Layout* p : places_)
    at.push_back(p->is_iota() ? Number(from[number(*p)]) : address_of({from[number(*p)]}));
  Number left = index;
  for (int axis = n.end; axis-- > n.first;) {
    const bool last = axis == n.first;
    const Number extent = integer(form_.extent(axis)), outer = last ? Number(0) : quotient(left, extent);
    const Number along = last ? left : left - outer * extent;
    put_number(along, n.indices, axis - n.first);
    for (const Layout* p : n.moved) at[number(*p)] = at[number(*p)] + along * integer(form_.stride(*p, axis));
    left = outer;
  }
  for (const Layout* p : n.moved) put_number(at[number(*p)], n.at, p->number);
}

void Addresses::begin(const Nest& n, std::vector<std::string>& names) const {
  for (const Layout* p : n.moved)
    names[number(*p)] = p->is_iota() ? number_at(n.at, p->number).name() : pointer_at(n.at, p->number).name;
}

void Addresses::begin_row() {
  begin(rows_, first_);
  row_ = first_;
}

void Addresses::next(const Nest& n, int axis) {
  if (n.first == n.end) return;
  for (const Layout* p : n.moved)
    put_number(number_at(n.at, p->number) + integer(form_.stride(*p, axis)), n.at, p->number);
  if (axis == n.first) return;
  const Number index = number_at(n.indices, axis - n.first) + 1, extent = integer(form_.extent(axis));
  put_number(index, n.indices, axis - n.first);
  when(index == extent, [&] {
    put_number(0, n.indices, axis - n.first);
    for (const Layout* p : n.moved)
      put_number(number_at(n.at, p->number) - extent * integer(form_.stride(*p, axis)), n.at, p->number);
    next(n, axis - 1);
  });
}

Number Addresses::stride(const Layout& p) const {
  return p.reach == Reach::kDense ? Number(p.item) : integer(form_.stride(p, form_.axes - 1));
}

Number Addresses::runs() const {
  Number all = 1;
  for (int axis = form_.row_axes; axis < form_.axes - 1; ++axis) all = all * integer(form_.extent(axis));
  return all;
}

}  // namespace kfusion::cpu::ir
