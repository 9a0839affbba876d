// Elements of arrays at positions that are data. Nothing is read at an index that has no position: it is reported, and
// what is at position 0, which every table has (ops' shapes see to that), takes its place.
#pragma once
#include "cpu/codegen/elements/elements.hpp"

namespace kfusion::cpu::ir {

/// Bytes from where a row of a table begins to the position that an index means, a number.
Number offset_in_table(const Form& form, const Addresses& at, int table, const Value& index);

/// The number that a step takes so many bytes from there.
Value number_taken(const Form& form, const Addresses& at, const Step& take, const Number& offset);

}  // namespace kfusion::cpu::ir
