// Writes one program over tiles: orders the steps so that most values are used from the registers where they were
// made, gives the others slots, and notes what the program reads and writes.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/fused/program.hpp"

namespace kfusion::cpu {

class Emitter {
 public:
  /// `sweep`: of an element program, -1 for others; it decides on prefetching.
  Emitter(FusedProgram& program, TileProgram& to, int sweep);

  /// Everything that is wanted, with each value's steps before it.
  void emit(const Wanted& all);

 private:
  const Step& step(int s) const { return p_.kernel.steps[static_cast<std::size_t>(s)]; }
  int& uses(int s) { return uses_[static_cast<std::size_t>(s)]; }
  int slot(int s) const { return slot_[static_cast<std::size_t>(s)]; }

  Wanted without_searches(Wanted wanted);
  bool is_row_sweep() const;  ///< that can be a loop over rows
  /// A value that another program has left in its home.
  bool is_home(int s) const;
  /// A value that this program makes, of others or of nothing.
  bool is_made(int s) const { return !is_home(s) && p_.source_of(s) < 0; }
  /// Whether a step can take it as an operand from where it is.
  bool is_readable(int s) const;

  void count_uses();
  void bring(int s);  ///< into the registers, with all that it is made of before it
  void fetch(int s);
  void make(int s);
  void finish(int s, const std::vector<int>& arguments);
  void keep_readable(int s);
  void cast(int s);
  void take(int s);
  bool is_rounded_by_store(int s);
  void save();  ///< what is in the registers, where it is wanted again
  void release(int s);
  void act(int s);

  /// What is still to be done for a value that is brought: a stack of our own, since chains are as long as functions.
  struct Task {
    enum class Kind : std::uint8_t {
      kBring,         ///< into the registers
      kMakeReadable,  ///< to where a step can take it from
      kKeepReadable,  ///< the same of what is in the registers
      kFinish         ///< the step itself: its first argument is in the registers, the others are readable
    } kind;
    int step;
    std::vector<int> arguments = {};  ///< kFinish: in the order in which they are taken
  };
  void work(const Task& task);

  bool is_element_of_tile(const Layout& layout) const;
  TileStep place_of(int s);
  TileStep place_of_source(int index);
  void note_fetch(const Source& source, std::size_t step);
  void fetch_unread();
  void place_fetches();
  template <class F>
  void add(F function_of_width, TileStep step = {});

  FusedProgram& p_;
  TileProgram& to_;
  int sweep_;
  const Wanted* wanted_ = nullptr;
  std::vector<Task> tasks_;
  std::vector<int> uses_, slot_, free_;
  std::vector<char> keeps_, acted_;
  std::vector<int> long_steps_;                     ///< of the program
  std::vector<std::pair<int, TileFetch>> fetches_;  ///< each with its step
  int current_ = -1;
};

}  // namespace kfusion::cpu
