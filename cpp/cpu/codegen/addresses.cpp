#include "cpu/codegen/addresses.hpp"

namespace kfusion::cpu::ir {

Addresses::Addresses(const Form& form) : form_(form) {
  for (int f = 0; f <= static_cast<int>(Field::kScratch); ++f) fields_.push_back(pointer_at({"%call"}, f));
  for (const auto* all : {&form.loads, &form.iotas, &form.tables, &form.stores})
    for (const Place& p : *all) {
      places_.push_back(&p);
      const Number offset = integer(form.offset(p));
      const Field of = p.stored ? Field::kStores : Field::kLoads;
      base_.push_back(p.is_iota() ? offset.name() : (pointer_at(field(of), p.array) + offset).name);
    }
  row_ = base_;
  if (form.outer_axes() == 0) return;
  rows_ = room(8 * form.operands);
  indices_ = room(8 * form.outer_axes());
}

std::vector<const Place*> Addresses::moved() const {
  std::vector<const Place*> moved;
  for (const Place* p : places_)
    if (p->by_rows) moved.push_back(p);
  return moved;
}

void Addresses::go_to(const Number& row) {
  if (form_.outer_axes() == 0) return;
  std::vector<Number> at;
  for (const Place* p : places_)
    at.push_back(p->is_iota() ? Number(base_[number(*p)]) : address_of({base_[number(*p)]}));
  Number left = row;
  for (int axis = form_.outer_axes(); axis-- > 0;) {
    const Number extent = integer(form_.extent(axis)), outer = axis == 0 ? Number(0) : quotient(left, extent);
    const Number index = axis == 0 ? left : left - outer * extent;
    put_number(index, indices_, axis);
    for (const Place* p : moved()) at[number(*p)] = at[number(*p)] + index * integer(form_.stride(*p, axis));
    left = outer;
  }
  for (const Place* p : moved()) put_number(at[number(*p)], rows_, p->number);
}

void Addresses::begin_row() {
  if (form_.outer_axes() == 0) return;
  for (const Place* p : moved())
    row_[number(*p)] = p->is_iota() ? number_at(rows_, p->number).name() : pointer_at(rows_, p->number).name;
}

void Addresses::next_row() {
  if (form_.outer_axes() > 0) next(form_.outer_axes() - 1);
}

void Addresses::next(int axis) {
  for (const Place* p : moved())
    put_number(number_at(rows_, p->number) + integer(form_.stride(*p, axis)), rows_, p->number);
  if (axis == 0) return;
  const Number index = number_at(indices_, axis) + 1, extent = integer(form_.extent(axis));
  put_number(index, indices_, axis);
  when(index == extent, [&] {
    put_number(0, indices_, axis);
    for (const Place* p : moved())
      put_number(number_at(rows_, p->number) - extent * integer(form_.stride(*p, axis)), rows_, p->number);
    next(axis - 1);
  });
}

Number Addresses::step(const Place& p) const {
  return p.reach == Reach::kDense ? Number(p.item) : integer(form_.stride(p, form_.axes - 1));
}

}  // namespace kfusion::cpu::ir
