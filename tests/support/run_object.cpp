// Calls a function of an object file on another processor (emulated by qemu), loaded by the product's loader:
//   run_object OBJECT FUNCTION plain BUFFER...                         f(buffer, buffer)
//   run_object OBJECT FUNCTION step REGISTERS BUFFER...                a step of the generator's tests
//   run_object OBJECT FUNCTION kernel LOADS SCRATCH ROWS COLS BUFFER...
//   run_object OBJECT SWEEPS pieces LOADS SCRATCH ROWS PIECES BUFFER...      so many sweeps over rows in pieces
// Each BUFFER is a file whose bytes are written back. Those of a kernel are so many loads, the stores, its integers and
// its numbers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/codegen/form/form.hpp"
#include "cpu/machine_code/elf.hpp"
#include "cpu/machine_code/libm_table.hpp"
#include "cpu/machine_code/platform.hpp"
#include "kfusion/files.hpp"

using namespace kfusion;

using Buffers = std::vector<std::string>;

std::vector<std::byte*> addresses(Buffers& buffers) {
  std::vector<std::byte*> all;
  for (std::string& b : buffers) all.push_back(reinterpret_cast<std::byte*>(b.data()));
  return all;
}

void run_step(void* function, std::int64_t registers, Buffers& buffers) {
  std::vector<const void*> p;
  for (const std::byte* b : addresses(buffers)) p.push_back(b);
  p.push_back(cpu::ir::libm_table(16));
  reinterpret_cast<void (*)(const void**, std::int64_t)>(function)(p.data(), registers);
}

/// run(call, rows, columns or pieces) with the arrays and the scratch memory of a kernel.
template <class Run>
void run_kernel(const Run& run, char** numbers, Buffers& buffers) {
  const auto number = [&](int i) { return std::atoll(numbers[i]); };
  const std::vector<std::byte*> p = addresses(buffers);
  std::vector<std::byte> scratch(static_cast<std::size_t>(number(1)) + 64);
  std::byte* const line = scratch.data() + (-reinterpret_cast<std::uintptr_t>(scratch.data()) & 63);
  const cpu::ir::Call call{p.data(),
                           p.data() + number(0),
                           reinterpret_cast<const std::int64_t*>(p[p.size() - 2]),
                           reinterpret_cast<const double*>(p.back()),
                           cpu::ir::libm_table(16),
                           nullptr,
                           line,
                           nullptr};
  run(&call, number(2), number(3));
}

/// Each row through sweepN and finishN of all sweeps; a sweep takes the last piece apart, as another thread would.
template <class Find>
void run_pieces(const Find& find, int sweeps, char** numbers, Buffers& buffers) {
  const auto take = [&](const cpu::ir::Call* call, std::int64_t rows, std::int64_t pieces) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (int i = 0; i < sweeps; ++i) {
        const auto sweep = find("sweep" + std::to_string(i)), finish = find("finish" + std::to_string(i));
        sweep(call, row, row + 1, pieces - 1, pieces);
        sweep(call, row, row + 1, 0, pieces - 1);
        finish(call, row, row + 1, 0, 0);
      }
  };
  run_kernel(take, numbers, buffers);
}

int main(int count, char** arguments) {
  const std::string file = bytes_of(arguments[1]), name = arguments[2], kind = arguments[3];
  const int first = kind == "plain" ? 4 : kind == "step" ? 5 : 8;
  Buffers buffers;
  for (int i = first; i < count; ++i) buffers.push_back(bytes_of(arguments[i]));
  const cpu::elf::Object object(file, cpu::elf::kHost);
  const cpu::CodePages pages(object.bytes(), [&](std::byte* to) { object.write(to); });
  const auto address = [&](const std::string& function) {
    for (const auto& f : object.functions())
      if (f.name == function) return const_cast<std::byte*>(pages.data() + f.offset);
    std::fprintf(stderr, "no function %s\n", function.c_str());
    std::exit(1);
  };
  const auto kernel = [&](const std::string& function) {
    return reinterpret_cast<cpu::ir::Function>(address(function));
  };
  if (kind == "plain")
    reinterpret_cast<void (*)(std::byte*, std::byte*)>(address(name))(addresses(buffers)[0], addresses(buffers)[1]);
  else if (kind == "step")
    run_step(address(name), std::atoll(arguments[4]), buffers);
  else if (kind == "pieces")
    run_pieces(kernel, std::atoi(arguments[2]), arguments + 4, buffers);
  else
    run_kernel([&](const auto* call, auto rows, auto cols) { kernel(name)(call, 0, rows, 0, cols); }, arguments + 4,
               buffers);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const OpenFile out(std::fopen(arguments[first + static_cast<int>(i)], "wb"));
    std::fwrite(buffers[i].data(), 1, buffers[i].size(), out.get());
  }
  return 0;
}
