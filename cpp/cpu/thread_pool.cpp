// One job at a time, cut into parts; whoever is free claims the next part, so that a worker which the system has not
// woken yet holds nobody up. The claim is one compare-and-swap on a word that also names the job: a worker left over
// from an earlier job can never take a part of a later one by mistake.
#include "cpu/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "cpu/openmp.hpp"
#include "cpu/platform.hpp"
#include "kfusion/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kfusion::cpu {
namespace {

constexpr int kMaxThreads = 512;
using Clock = std::chrono::steady_clock;
/// Longer than the gap between two kernels, shorter than anyone notices.
constexpr auto kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits busily for done(), but not for long. Returns whether it came.
template <class F>
bool spins_until(const F& done) {
  constexpr int kLooks = 32;  // between two looks at the clock
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) return true;
      relax();
    }
  } while (Clock::now() < end);
  return false;
}

/// The job's serial number, how many workers it admits, its parts, and the next part to claim.
struct Ticket {
  std::uint64_t word;
  static Ticket make(std::uint64_t serial, int workers, int parts) {
    return {serial << 40 | static_cast<std::uint64_t>(workers) << 28 | static_cast<std::uint64_t>(parts) << 14};
  }
  std::uint64_t serial() const { return word >> 40; }
  int workers() const { return static_cast<int>(word >> 28 & 0xfff); }
  int parts() const { return static_cast<int>(word >> 14 & 0x3fff); }
  int next() const { return static_cast<int>(word & 0x3fff); }
};

/// Where part `i` begins.
std::int64_t edge_of(std::int64_t count, int parts, std::int64_t i) {
  return count / parts * i + count % parts * i / parts;
}

class ThreadPool {
 public:
  /// False when the pool is busy: nothing has been done.
  bool try_run(std::int64_t count, int threads, int parts, Body body, void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    start(threads - 1);
    body_ = body, context_ = context, count_ = count, parts_ = parts;
    failed_ = false, error_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t serial = Ticket{ticket_.load(std::memory_order_relaxed)}.serial() + 1;
    note_core();
    ticket_.store(Ticket::make(serial, threads - 1, parts).word);
    wake();
    while (claim(-1)) note_core();
    wait_until_done();
    const std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
    return true;
  }

  bool are_awake(int workers) const { return started_.load() - sleepers_.load() >= workers; }

 private:
  void start(int workers) {
    for (; started_ < workers; ++started_) {
      try {
        without_signals([&] { std::thread([this, index = started_.load()] { work(index); }).detach(); });
      } catch (...) {  // no more threads: those that are there do the work
        return;
      }
    }
  }

  /// Wakes workers, but not while some are on their way: it costs the caller some 10 us, and no job waits for a worker
  /// that has not come.
  void wake() {
    if (sleepers_.load() == 0 || waking_.exchange(true)) return;
    {
      const std::lock_guard lock(mutex_);
    }
    awake_.notify_all();
  }

  /// Takes the next part, if there is one for this worker (-1: the caller), and does it.
  bool claim(int worker) {
    Ticket seen{ticket_.load(std::memory_order_acquire)};
    do {
      if (seen.next() >= seen.parts() || worker >= seen.workers()) return false;
    } while (!ticket_.compare_exchange_weak(seen.word, seen.word + 1, std::memory_order_acq_rel));
    const std::int64_t part = seen.next();
    try {
      body_(context_, edge_of(count_, parts_, part), edge_of(count_, parts_, part + 1));
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    const int parts = parts_;  // once the last part is counted, the fields belong to the next job
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) done_.notify_one();
    return true;
  }

  void wait_until_done() {
    if (spins_until([&] { return done_.load(std::memory_order_acquire) == parts_; })) return;
    for (int done; (done = done_.load(std::memory_order_acquire)) != parts_;) done_.wait(done);
  }

  /// Workers that spin look at it: it is written only where it changes.
  void note_core() {
    const int core = current_core();
    if (core != core_.load(std::memory_order_relaxed)) core_.store(core, std::memory_order_relaxed);
  }

  /// Where other cores are busy, the system may wake a worker on the caller's core. It then runs instead of the caller.
  bool is_in_the_way() const {
    const int core = current_core();
    return core >= 0 && core == core_.load(std::memory_order_relaxed);
  }

  void work(int index) {
    for (;;) {
      const std::uint64_t serial = Ticket{ticket_.load(std::memory_order_acquire)}.serial();
      if (!has_news(serial, index)) {
        wait_for_news(serial, index);
      } else if (is_in_the_way()) {
        std::this_thread::yield();  // until the system moves it to another core
      } else {
        claim(index);
      }
    }
  }

  /// Whether the ticket shows a job after `serial`, or one that this worker may still help with.
  bool has_news(std::uint64_t serial, int index) const {
    const Ticket now{ticket_.load()};
    return now.serial() != serial || (now.next() < now.parts() && index < now.workers());
  }

  /// Returns when there is news.
  void wait_for_news(std::uint64_t serial, int index) {
    const auto news = [&] { return has_news(serial, index); };
    bool came = false;
    spins_until([&] { return (came = news()) || is_in_the_way(); });
    if (came) return;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    awake_.wait(lock, [&] {  // who looks is no longer on the way, whether or not there is news for it
      waking_.store(false);
      return news();
    });
    sleepers_.fetch_sub(1);
  }

  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<int> core_{-1};  // the caller's
  alignas(64) std::atomic<bool> busy_{false};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> waking_{false};
  std::atomic<int> started_{0};
  // The job: written by the caller while no part is claimable.
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::int64_t count_ = 0;
  int parts_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable awake_;
};

/// A job on threads of others, who take its parts in turn.
class SharedJob {
 public:
  SharedJob(std::int64_t count, int parts, Body body, void* context)
      : count_(count), parts_(parts), body_(body), context_(context) {}

  void run(ParallelRegion region, int threads) {
    region([](void* job) { static_cast<SharedJob*>(job)->work(); }, this, static_cast<unsigned>(threads), 0);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() {
    for (std::int64_t part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < parts_;) {
      try {
        body_(context_, edge_of(count_, parts_, part), edge_of(count_, parts_, part + 1));
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
  }

  const std::int64_t count_;
  const int parts_;
  const Body body_;
  void* const context_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

/// Registered when this library is loaded, before anybody can fork.
std::atomic<ThreadPool*> current_pool = [] {
  in_forked_child([] { current_pool.store(nullptr); });
  return nullptr;
}();

/// Never destroyed: its threads may still be waiting when the process ends. A forked child has none of them, and
/// makes a pool of its own.
ThreadPool& thread_pool() {
  ThreadPool* now = current_pool.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  auto* fresh = new ThreadPool;
  if (current_pool.compare_exchange_strong(now, fresh)) return *fresh;
  delete fresh;
  return *now;
}

int threads_from_environment() {
  const char* text = std::getenv("KFUSION_NUM_THREADS");
  if (text == nullptr || *text == '\0') return std::min(usable_cores(), kMaxThreads);
  int n = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, n);
  if (error != std::errc{} || stop != end || n < 1)
    throw ValueError("kfusion: KFUSION_NUM_THREADS must be a positive integer, got '" + std::string(text) + "'");
  return std::min(n, kMaxThreads);
}

std::atomic<int> thread_limit{0};  // 0: not known yet. No static variable of a function: see least_streamed in job.cpp

}  // namespace

int num_threads() {
  int limit = thread_limit.load(std::memory_order_relaxed);
  if (limit > 0) return limit;
  const int fresh = threads_from_environment();
  return thread_limit.compare_exchange_strong(limit, fresh) ? fresh : limit;
}

void set_num_threads(int n) {
  if (n < 1) throw ValueError("kfusion.set_num_threads: n must be at least 1, got " + std::to_string(n));
  thread_limit.store(std::min(n, kMaxThreads));
}

bool workers_are_near(int workers) {
  if (parallel_region()) return true;  // they wait between two functions of torch's
  constexpr auto kClose = std::chrono::microseconds(200);
  constexpr int kLeastInRow = 3;
  static std::atomic<Clock::rep> last{0};
  static std::atomic<int> in_row{0};
  const auto now = Clock::now().time_since_epoch();
  const bool close = now - Clock::duration(last.exchange(now.count(), std::memory_order_relaxed)) < kClose;
  const int before = close ? in_row.load(std::memory_order_relaxed) : 0;
  in_row.store(std::min(before + 1, kLeastInRow), std::memory_order_relaxed);
  return before + 1 >= kLeastInRow || thread_pool().are_awake(workers);
}

void parallel_for(std::int64_t count, int threads, Body body, void* context, std::int64_t many) {
  if (count <= 0) return;
  threads = static_cast<int>(std::min<std::int64_t>({threads, num_threads(), count}));
  // Several parts a thread where there are many units: a core that is busy elsewhere then delays one part only.
  const int parts = count >= many * threads ? 8 * threads : threads;
  if (const ParallelRegion region = threads > 1 ? parallel_region() : nullptr)
    return SharedJob(count, parts, body, context).run(region, threads);
  if (threads > 1 && thread_pool().try_run(count, threads, parts, body, context)) return;
  body(context, 0, count);
}

}  // namespace kfusion::cpu
