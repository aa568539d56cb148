// A small pool for work measured in microseconds.
//
// The caller of run() works too. Jobs are cut into chunks that any thread claims, so a thread that the system has taken
// off its core delays a job only while it holds a chunk: the others do the rest. Threads spin briefly, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace blockdraft {

class Pool {
 public:
  // Throws std::invalid_argument unless 1 <= num_threads <= 256.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(chunk, thread) for every chunk in [0, chunks), each once, and returns when all are done. `thread` is below
  // num_threads() and belongs to one chunk at a time. fn must not throw.
  template <class Fn>
  void run(int64_t chunks, Fn&& fn) {
    if (chunks <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < chunks; ++i) fn(i, 0);
      return;
    }
    run_shared(chunks, [](void* context, int64_t chunk, int thread) { (*static_cast<Fn*>(context))(chunk, thread); },
               const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  // Held by a pass, so that two Python threads cannot interleave their jobs.
  std::mutex& mutex() { return mutex_; }

 private:
  using Call = void (*)(void*, int64_t, int);
  void run_shared(int64_t chunks, Call call, void* context);
  bool work_once(uint64_t& seen, int thread);
  void worker(int thread);

  // sequence (24 bits) | number of chunks (20) | next chunk (20): claiming is one compare-and-swap that fails when the job
  // has changed, so a late thread can never run a chunk of a job that is over.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> parked_{0};
  std::atomic<bool> stop_{false};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  uint64_t sequence_ = 0;
  std::mutex mutex_;
  std::vector<std::thread> workers_;
};

}  // namespace blockdraft
