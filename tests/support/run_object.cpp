// Calls a function of an object file on another processor (emulated by qemu), loaded by the product's loader:
//   run_object OBJECT FUNCTION REGISTERS BUFFER...
// Each BUFFER is a file. The function gets pointers to their bytes, which are written back; with REGISTERS not 0, it is
// a step of the generator's tests, which gets a table of these pointers and of libm, and how many registers it
// computes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/codegen/elf.hpp"
#include "cpu/codegen/libm_table.hpp"
#include "cpu/codegen/platform.hpp"
#include "kfusion/files.hpp"

using namespace kfusion;

int main(int count, char** arguments) {
  const std::string file = bytes_of(arguments[1]);
  const cpu::elf::Object object(file, cpu::elf::kHost);
  const cpu::CodePages pages(object.bytes(), [&](std::byte* to) { object.write(to); });
  std::vector<std::string> buffers;
  const long long registers = std::atoll(arguments[3]);
  for (int i = 4; i < count; ++i) buffers.push_back(bytes_of(arguments[i]));
  std::vector<const void*> p;
  for (std::string& b : buffers) p.push_back(b.data());
  p.push_back(cpu::ir::libm_table(16));
  p.resize(8);
  for (const auto& f : object.functions()) {
    if (f.name != arguments[2]) continue;
    void* const address = const_cast<std::byte*>(pages.data() + f.offset);
    if (registers > 0)
      reinterpret_cast<void (*)(const void**, std::int64_t)>(address)(p.data(), registers);
    else
      reinterpret_cast<void (*)(const void*, const void*)>(address)(p[0], p[1]);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const OpenFile out(std::fopen(arguments[4 + i], "wb"));
      std::fwrite(buffers[i].data(), 1, buffers[i].size(), out.get());
    }
    return 0;
  }
  std::fprintf(stderr, "no function %s\n", arguments[2]);
  return 1;
}
