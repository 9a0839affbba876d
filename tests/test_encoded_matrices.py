"""What is kept of matrices from one launch of a product's kernel to the next (cuda/host/encoded_matrices.hpp)."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "host/encoded_matrices.hpp"

using namespace kfusion;

std::atomic<int> encoded{0};
bool fails = false;

/// Tells what it was made of.
void encode_plainly(const codegen::BoxedMatrix& m, const std::byte* address, std::byte* to) {
  ++encoded;
  if (fails) throw std::runtime_error("no");
  std::memset(to, 0, 128);
  std::memcpy(to, &address, sizeof address);
  std::memcpy(to + 64, &m.index, sizeof m.index);
}
const codegen::EncodeMatrix encode = encode_plainly;

void require(bool is, const char* what) {
  if (!is) std::printf("%s\n", what), std::exit(1);
}

const std::byte* at(std::uintptr_t n) { return reinterpret_cast<const std::byte*>(n); }

void launch(const cuda::EncodedMatrices& kept, const std::vector<std::uintptr_t>& addresses) {
  cuda::EncodedMatrices::Launch matrices(kept, encode);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    codegen::BoxedMatrix m;
    m.index = static_cast<int>(i);
    std::byte to[128], want[128] = {};
    const std::byte* address = at(addresses[i]);
    matrices(m, address, to);
    std::memcpy(want, &address, sizeof address);
    std::memcpy(want + 64, &m.index, sizeof m.index);
    require(std::memcmp(to, want, 128) == 0, "another matrix");
  }
}

int count(const cuda::EncodedMatrices& kept, const std::vector<std::uintptr_t>& addresses) {
  const int before = encoded;
  launch(kept, addresses);
  return encoded - before;
}

int main() {
  cuda::EncodedMatrices kept;
  require(count(kept, {16, 32, 48}) == 3, "the first launch");
  require(count(kept, {16, 32, 48}) == 0, "the same again");
  require(count(kept, {16, 32, 64}) == 1, "another result");
  require(count(kept, {16, 32, 48}) == 0 && count(kept, {16, 32, 64}) == 0, "two in turns");
  require(count(kept, {32, 16, 48}) == 2, "the same addresses of other matrices");
  require(count(kept, {96, 112, 128}) == 3 && count(kept, {16, 32, 64}) >= 1, "a third one");
  require(count(kept, {0, 0}) == 2 && count(kept, {0, 0}) == 2, "no address");
  require(count(kept, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) == 10, "more than are kept");
  fails = true;
  for (int i = 0; i < 2; ++i) {
    try {
      launch(kept, {1024});
      require(false, "a failure is lost");
    } catch (const std::runtime_error&) {
    }
  }
  fails = false;
  require(count(kept, {1024}) == 1, "what failed is kept");
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uintptr_t i = 0; i < 20000; ++i) launch(kept, {16 * (i % 3 + t), 16 * t, 16 * (i % 2), 16 * i});
    });
  for (std::thread& t : threads) t.join();
  std::printf("all right\n");
}
"""


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_what_is_kept(tmp_path, sanitizer):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    (tmp_path / "program.cpp").write_text(PROGRAM)
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-pthread", f"-fsanitize={sanitizer}"]
    folders = [f"-I{ROOT / folder}" for folder in ("cpp", "cuda")]
    command = ["g++", *flags, *folders, "-o", tmp_path / "program", tmp_path / "program.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "all right\n"), ran.stdout + ran.stderr
