#include "pool.h"

#include <stdexcept>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace blockdraft {

namespace {

constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (1u << kCountBits) - 1;
constexpr int kWorkerSpins = 3000;  // about 0.1 ms: the gap between two passes
constexpr int kCallerSpins = 400;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr uint64_t make_ticket(uint64_t sequence, uint64_t chunks) {
  return sequence << (2 * kCountBits) | chunks << kCountBits;
}

}  // namespace

Pool::Pool(int num_threads) {
  if (num_threads < 1 || num_threads > 256) {
    throw std::invalid_argument("a pool has 1 to 256 threads, not " + std::to_string(num_threads));
  }
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

// Claims and runs one chunk; false when the current job has none left.
bool Pool::work_once(uint64_t& seen, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    seen = ticket;
    const uint64_t next = ticket & kCountMask, chunks = ticket >> kCountBits & kCountMask;
    if (next >= chunks) return false;
    const Call call = call_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      call(context, static_cast<int64_t>(next), thread);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) done_.notify_one();
      return true;
    }
  }
}

void Pool::run_shared(int64_t chunks, Call call, void* context) {
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(make_ticket(++sequence_, static_cast<uint64_t>(chunks)), std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  uint64_t seen;
  while (work_once(seen, 0)) {
  }
  const uint32_t total = static_cast<uint32_t>(chunks);
  for (int spin = 0;; ++spin) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == total) return;
    if (spin < kCallerSpins) relax();
    else done_.wait(done, std::memory_order_acquire);
  }
}

void Pool::worker(int thread) {
  uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (work_once(seen, thread)) continue;
    bool changed = false;
    for (int spin = 0; spin < kWorkerSpins && !changed; ++spin) {
      relax();
      changed = ticket_.load(std::memory_order_acquire) != seen;
    }
    if (changed) continue;
    parked_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t wake = wake_.load();
    if (ticket_.load(std::memory_order_seq_cst) == seen && !stop_.load()) wake_.wait(wake);
    parked_.fetch_sub(1);
  }
}

}  // namespace blockdraft
