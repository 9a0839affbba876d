#include "cpu/codegen/elements/row_copies.hpp"

#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/instructions/memory.hpp"

namespace kfusion::cpu::ir {

RowCopies::RowCopies(const Form& form, Addresses& at) : form_(form), at_(at) {
  if (!form.joins_rows) return;
  cols_ = at.integer(form.extent(form.axes - 1)), block_ = at.integer(form.block());
  for (int k = 0; k < form.registers_of_row(); ++k) masks_.push_back(mask_of(cols_ - std::int64_t{form.lanes} * k));
  Pointer memory = at.field(Field::kScratch);
  const Number pitch = copy_pitch(block_ * cols_);
  for (const auto* layouts : {&form.loads, &form.iotas, &form.tables, &form.stores})
    for (const Layout& p : *layouts) {
      if (!p.copied) continue;
      copies_.push_back({&p, memory, {}});
      memory = memory + pitch;
    }
}

void RowCopies::begin() {
  for (Copy& s : copies_) {
    s.array = at_.row(*s.layout);
    if (s.layout->repeats && !s.layout->by_rows) fill(s, 0, block_);
  }
}

void RowCopies::begin_row() {
  for (Copy& s : copies_) {
    if (!s.layout->by_rows) continue;
    s.array = at_.row(*s.layout);
    if (s.layout->repeats) fill(s, 0, least(block_, at_.integer(form_.extent(form_.axes - 2))));
  }
}

void RowCopies::load(const Number& first, const Number& rows) {
  for (const Copy& s : copies_) {
    if (!s.layout->stored && !s.layout->repeats) fill(s, first, rows);
    const bool are_numbers = s.layout->is_table || s.layout->is_iota();
    at_.lies_at(*s.layout, s.memory + (Number(0) - first * cols_) * (are_numbers ? 8 : s.layout->item));
  }
}

/// row(a, b) for so many rows.
template <class Row>
void RowCopies::for_rows(const Pointer& a, const Number& a_stride, const Pointer& b, const Number& b_stride,
                         const Number& rows, const Row& row) const {
  Carry at = {{"ptr", a.name}, {"ptr", b.name}};
  for_each(0, rows, 1, at, [&](const Number&) {
    const Pointer here{at[0].name}, there{at[1].name};
    row(here, there);
    at[0].name = (here + a_stride).name, at[1].name = (there + b_stride).name;
  });
}

void RowCopies::fill(const Copy& s, const Number& first, const Number& rows) const {
  const Layout& p = *s.layout;
  if (p.is_iota() || p.is_table) return count_off(s, first, rows);
  const Pointer from = s.array + first * across(p);
  const Number pitch = cols_ * p.item;
  const std::int64_t bytes = std::int64_t{form_.lanes} * p.item;
  const std::string bits = bits_of_item(p.item), type = vector_of(bits);
  const auto put = [&](const std::string& lanes, const Pointer& to, int k) {
    text().line("store " + type + " " + lanes + ", ptr " + (to + bytes * k).name + ", align 1");
  };
  const auto copy_row = [&](const Pointer& row, const Pointer& to) {
    for (int k = 0; k < form_.registers_of_row(); ++k)
      put(load_lanes(row + bytes * k, p.item, masks_[static_cast<std::size_t>(k)]), to, k);
  };
  const auto repeat_number = [&](const Pointer& number, const Pointer& to) {
    const std::string all = splat_of(bits, emit("load " + bits + ", ptr " + number.name + ", align 1"));
    for (int k = 0; k < form_.registers_of_row(); ++k) put(all, to, k);
  };
  const auto copy_column = [&](const Pointer& column, const Pointer& to) {
    copy_elements(column, across(p), to, pitch, p.item, rows);
  };
  if (p.along == Reach::kOfRow)
    for_rows(from, across(p), s.memory, pitch, rows, repeat_number);
  else if (p.along == Reach::kDense && can_mask(form_.target, p.item))
    for_rows(from, across(p), s.memory, pitch, rows, copy_row);
  else
    for_rows(from, stride(p, form_.axes - 1), s.memory, p.item, cols_, copy_column);
}

/// The numbers of an iota, or the bytes from where a table begins.
void RowCopies::count_off(const Copy& s, const Number& first, const Number& rows) const {
  const Layout& p = *s.layout;
  const Number begin = (p.is_iota() ? Number(s.array.name) : Number(0)) + first * across(p);
  const std::string type = vector_of("i64"), apart = splat_of("i64", stride(p, form_.axes - 1).name());
  std::vector<std::string> lanes;
  for (int k = 0; k < form_.registers_of_row(); ++k) {
    const std::string numbers = emit("add " + type + " " + numbered("i64") + ", " +
                                     splat("i64", std::to_string(std::int64_t{form_.lanes} * k)));
    lanes.push_back(emit("mul " + type + " " + numbers + ", " + apart));
  }
  Carry at = {{"i64", begin.name()}, {"ptr", s.memory.name}};
  for_each(0, rows, 1, at, [&](const Number&) {
    const std::string from = splat_of("i64", at[0].name);
    const Pointer to{at[1].name};
    for (int k = 0; k < form_.registers_of_row(); ++k)
      text().line("store " + type + " " + emit("add " + type + " " + from + ", " + lanes[static_cast<std::size_t>(k)]) +
                  ", ptr " + (to + std::int64_t{form_.lanes} * 8 * k).name + ", align 1");
    at[0].name = (Number(at[0].name) + across(p)).name(), at[1].name = (to + cols_ * 8).name;
  });
}

void RowCopies::store(const Number& first, const Number& rows) const {
  for (const Copy& s : copies_) {
    const Layout& p = *s.layout;
    if (!p.stored) continue;
    const Pointer to = s.array + first * across(p);
    const Number pitch = cols_ * p.item;
    const std::int64_t bytes = std::int64_t{form_.lanes} * p.item;
    const std::string type = vector_of(bits_of_item(p.item));
    const auto copy_row = [&](const Pointer& from, const Pointer& row) {
      for (int k = 0; k < form_.registers_of_row(); ++k) {
        const std::string lanes = emit("load " + type + ", ptr " + (from + bytes * k).name + ", align 1");
        store_lanes(lanes, p.item, row + bytes * k, masks_[static_cast<std::size_t>(k)]);
      }
    };
    const auto copy_column = [&](const Pointer& from, const Pointer& column) {
      copy_elements(from, pitch, column, across(p), p.item, rows);
    };
    if (p.along == Reach::kOfRow)
      copy_column(s.memory, to);
    else if (p.along == Reach::kDense && can_mask(form_.target, p.item))
      for_rows(s.memory, pitch, to, across(p), rows, copy_row);
    else
      for_rows(s.memory, p.item, to, stride(p, form_.axes - 1), cols_, copy_column);
  }
}

}  // namespace kfusion::cpu::ir
