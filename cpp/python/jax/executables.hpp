// What XLA's custom calls run: executables by key.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "python/fuse/entry.hpp"

namespace kfusion::ffi {

/// A graph that custom calls run, whose inputs and outputs are in C order. Immutable but for what `at` adds.
class Call {
 public:
  /// Called with the GIL. Compiles for `place`. Throws what planning and compiling do.
  Call(Graph graph, const Device& device, PlanOptions options, Place place);

  /// Where it was compiled first.
  Place place() const { return place_; }
  const std::vector<View>& inputs() const { return inputs_; }
  const std::vector<View>& outputs() const { return outputs_; }

  /// What runs there; compiled where it is not yet, for which it takes the GIL. Throws as above.
  std::shared_ptr<const fuse::Compiled> at(Place place) const;

 private:
  std::shared_ptr<const fuse::Compiled> made(Place place) const;

  const Graph graph_;
  const Device device_;
  const PlanOptions options_;
  const Place place_;
  std::vector<View> inputs_, outputs_;
  struct Places;
  std::shared_ptr<Places> places_;
};

/// The call with that key; nullptr where there is none.
std::shared_ptr<const Call> find_call(std::int64_t key);
/// Forgets others where there are many: an XLA executable may live as long as it likes, and its calls bring the text
/// that they are made of.
void add_call(std::int64_t key, std::shared_ptr<const Call> call);

/// Makes a call of its text, which is Python's to read: calls the function that was set, with the GIL.
std::shared_ptr<const Call> load_call(std::int64_t key, const std::string& text);
void set_loader(pybind11::object loader);

}  // namespace kfusion::ffi
