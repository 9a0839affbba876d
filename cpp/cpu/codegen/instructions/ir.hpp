// The text of a function in LLVM's intermediate representation while it is written: instructions, blocks, names, and
// what the module has to declare for them.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/machine_code/target.hpp"

namespace kfusion::cpu::ir {

/// The body of one function. All vectors have the same number of lanes, whatever their type: LLVM cuts those that are
/// longer than a register, and takes their parts in turn.
class Text {
 public:
  Text(const TargetFacts& target, int lanes) : target_(target), lanes_(lanes), now_(lanes) {}

  const TargetFacts& target() const { return target_; }
  int lanes() const { return now_; }  ///< 1: then a vector is a number
  int vector_lanes() const { return lanes_; }

  std::string name() { return "%t" + std::to_string(names_++); }
  std::string new_label(std::string_view what) { return std::string(what) + std::to_string(labels_++); }
  /// `rhs` under a new name, which is returned.
  std::string emit(std::string_view rhs);
  void line(std::string_view instruction);
  /// Ends no block: the line before it has to be a terminator.
  void label(const std::string& name);
  const std::string& block() const { return block_; }  ///< that is being written, for phis

  /// An empty line that is filled when its contents are known: phis at the head of a loop.
  std::size_t reserve();
  void fill(std::size_t line, std::string_view text);

  /// Memory of the function, for one value of a type. (An alloca elsewhere than in the first block would take more of
  /// the stack each time.)
  std::string stack(std::string_view type);

  /// A line of the module, once: "declare ...".
  void declare(std::string_view line) { declarations_.emplace(line); }

  /// A function of the module that this one calls, written once: `write` appends its body to the current text.
  void define(const std::string& head, const std::function<void()>& write);

  /// All lines of the function, with "entry:" first.
  std::string body() const;
  const std::set<std::string>& declarations() const { return declarations_; }
  /// Its attributes: "nounwind ...", without which LLVM would cut vectors of 512 bits, and put what it spills across
  /// lines: such a load waits for the stores past the caches before it (sin of doubles from memory: 2.6 of the time).
  std::string attributes() const;

  std::string libm = "%libm";  ///< the pointer to the table of functions (libm_table.hpp)

 private:
  friend class Lanes;

  const TargetFacts& target_;
  int lanes_, now_, names_ = 0, labels_ = 0;
  std::string block_ = "entry";
  std::vector<std::string> lines_, stack_;
  std::set<std::string> declarations_, defined_;
};

/// Where this thread's values write to.
Text& text();

/// While it lives, values write to `text`.
class Writing {
 public:
  explicit Writing(Text& text);
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  Text* before_;
};

/// While it lives, vectors of the current text have so many lanes: one, where the same functions give numbers of rows,
/// or those of several registers, whose instructions LLVM takes in turn.
class Lanes {
 public:
  explicit Lanes(int lanes) : text_(text()), before_(text_.now_) { text_.now_ = lanes; }
  ~Lanes() { text_.now_ = before_; }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

 private:
  Text& text_;
  int before_;
};

std::string lines_of(const std::set<std::string>& declarations);

/// "<16 x float>" of "float"; "float" where there is one lane.
std::string vector_of(std::string_view scalar);
/// A constant in every lane.
std::string splat(std::string_view scalar, std::string_view value);

/// All lanes of a vector combined to a number, the upper half with the lower, by both(a, b) of vectors so long.
/// (Where all lanes were shuffled in each step, LLVM 22.1 took some twice and others never, with AVX-512.)
std::string fold_lanes(std::string vector, const std::string& scalar,
                       const std::function<std::string(const std::string&, const std::string&)>& both);

inline std::string emit(std::string_view rhs) { return text().emit(rhs); }

/// A function of LLVM's, declared and called: `arguments` are (type, value).
std::string call(std::string_view result, std::string_view function,
                 const std::vector<std::pair<std::string, std::string>>& arguments);

}  // namespace kfusion::cpu::ir
