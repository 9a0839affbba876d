// What decides which kernels a call runs: the kinds, dtypes and layouts of its arrays, and the values of all else.
//
// A signature is a list of words. Arrays come down to kind, dtype, shape, strides, place and alignment; Python's floats
// to the fact that they are floats, since kernels take their values when they run (a value that the trace looked at is
// added afterwards), and so the ints among the arguments of functions of the user's; other numbers, strings and None to
// their values, tuples, lists, dicts and dataclasses with arrays to those of their parts, anything else to its
// identity.
#pragma once
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "python/arrays/array.hpp"

namespace kfusion::fuse {

namespace py = pybind11;
using arrays::Array;
using arrays::Call;

/// Numbers are known by registers: floats, ints, and what is computed of them (python/kfusion/_graph/number.py).
constexpr std::size_t kMostFloats = 64;
constexpr std::size_t kMostInts = 16;
constexpr int kFirstInt = 64;
constexpr int kFirstResult = 128;

/// A Python object that a signature names.
struct Named {
  PyObject* object;
  bool by_value;  ///< equal ones will do; else it is this one
};

class Signature {
 public:
  explicit Signature(Call& call) : call_(call) { words_.reserve(kUsualWords); }
  Signature(const Signature&) = delete;
  Signature& operator=(const Signature&) = delete;

  /// `argument` names the value in messages. Throws what borrowing an array throws.
  void add(const char* argument, PyObject* value);
  /// Adds an argument of a function that reads ints; an int's value counts only where the trace looks at it.
  void add_unless_int(const char* argument, PyObject* value);
  void add_number(std::uint64_t number) { words_.push_back(number); }
  void add_keyword(PyObject* name, PyObject* value, bool reads_ints);
  /// An array to write a result into. Throws TypeError for what is none.
  void add_out(PyObject* value);
  /// After all arguments: the numbers of the environments. Again: in the place of those before, and of all that came
  /// after them.
  void set_environments(std::span<const std::uint64_t> numbers);
  /// What the call shares with those that differ in the extents of arrays in C order only: 0, 1 and any other. Called
  /// twice, all is as before.
  void exchange_extents();
  /// From now on the signature is that of the same call without arrays to write results into; outs() has them still.
  void leave_outs();
  /// The values of the floats and ints of these registers.
  void add_values(const std::vector<int>& numbers);
  /// The call's comparison of this number has the other answer than what was found for the signature so far.
  void add_other_answer(int number);
  /// The values of all floats and ints: the signature of a call that is traced with its numbers as they are.
  void add_all_values();
  /// Takes back what was added last.
  void remove_values(std::size_t count);
  /// The registers of those that were added, in order.
  const std::pmr::vector<int>& added() const { return added_; }

  /// Whether a traced value is among the arguments: the call is part of another function's trace.
  bool traced() const { return traced_; }
  /// Whether there are objects that must be taken apart before the call has a signature.
  bool has_plain() const { return has_plain_; }
  std::uint64_t hash() const;

  /// Memory for whatever lives as long as the call and is made with the signature.
  std::pmr::memory_resource* memory() { return &resource_; }

  const std::pmr::vector<std::uint64_t>& words() const { return words_; }
  const std::pmr::vector<Named>& objects() const { return objects_; }
  /// Those that are named by identity, and of which what they hold or run decides as well.
  const std::pmr::vector<PyObject*>& guarded() const { return guarded_; }
  const std::pmr::vector<Array>& arrays() const { return arrays_; }  ///< of the arguments, in order
  const std::pmr::vector<Array>& outs() const { return outs_; }
  const std::pmr::vector<Array>& no_arrays() const { return none_; }
  const std::pmr::vector<double>& floats() const { return floats_; }
  bool has(int register_number) const {
    const auto i = static_cast<std::size_t>(register_number);
    return i < kMostFloats ? i < floats_.size() : i - kMostFloats < ints_.size();
  }
  /// The float or int of that register.
  PyObject* number(int register_number) const {
    const auto i = static_cast<std::size_t>(register_number);
    return i < kMostFloats ? float_objects_[i] : ints_[i - kMostFloats];
  }

 private:
  void add_array(const char* argument, PyObject* value, std::pmr::vector<Array>& to);
  void add_float(PyObject* object, double value, std::uint64_t tag);
  /// An int whose value counts only where the trace looks at it; false: there are too many, or it is too large.
  bool add_int(PyObject* value);
  void add_value(int number);
  void add_items(const char* argument, PyObject* value);
  void add_key(PyObject* value);
  void add_members(PyObject* value);
  void add_object(PyObject* value, bool by_value);
  void add_itself(PyObject* value);

  static constexpr std::size_t kUsualWords = 64;

  Call& call_;
  std::byte memory_[16384];  // so that most calls allocate nothing
  std::pmr::monotonic_buffer_resource resource_{memory_, sizeof memory_};
  std::pmr::vector<std::uint64_t> words_{&resource_};
  std::pmr::vector<Named> objects_{&resource_};
  std::pmr::vector<PyObject*> guarded_{&resource_};
  std::pmr::vector<Array> arrays_{&resource_}, outs_{&resource_}, none_{&resource_};
  std::pmr::vector<double> floats_{&resource_};
  std::pmr::vector<PyObject*> float_objects_{&resource_}, ints_{&resource_};
  std::pmr::vector<int> added_{&resource_};
  struct Extent {
    std::size_t word;
    std::uint64_t other;
  };
  std::pmr::vector<Extent> extents_{&resource_};  ///< of arrays in C order, for exchange_extents
  std::vector<py::object> held_;  ///< what the arguments are read from, where that is not the caller's alone
  std::size_t words_before_outs_ = 0, words_of_arguments_ = 0, words_with_environment_ = 0;
  int depth_ = 0;
  bool traced_ = false, has_plain_ = false;
};

/// Whether a traced value is among the leaves of tuples, lists and dicts.
bool has_traced(PyObject* value);

/// Borrows an array as a kernel can read it: where its elements are not aligned to their size, a dense copy.
Array borrow_readable(Call& call, const char* argument, py::handle object);
void borrow_readable(Call& call, const char* argument, py::handle object, Array& to);  ///< the same, in place

/// Whether loads of whole vectors may start at the first element, where kernels of its place ask.
bool is_aligned_to_vectors(const View& v);

/// The words of an array.
void append_words(const Array& a, std::pmr::vector<std::uint64_t>& words);

}  // namespace kfusion::fuse
