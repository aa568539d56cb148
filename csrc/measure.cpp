// Measured limits of the machine; see measure.h.

#include "measure.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace blockdraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 1024;
constexpr int kSweeps = 7;  // the best one counts: neighbours only ever slow a sweep
constexpr std::size_t kStreams = 4;  // read side by side by one thread
constexpr std::size_t kStep = 256;    // bytes of each stream per step
constexpr std::int64_t kPeakSteps = 4'000'000;  // about 20 ms per sweep
constexpr int kChains = 12;  // independent sums: 2 issues x 5 cycles of latency, and two to spare
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Keeps a value in a register and hides it from the optimizer.
template <typename T>
inline void opaque(T& value) {
  asm volatile("" : "+x"(value));
}

// Seconds of the best sweep of work(thread) on all threads. A sweep lasts from the first thread's
// start to the last one's end, by their own clocks: the caller may be asleep meanwhile.
template <typename Work>
double best_seconds(int threads, Work&& work) {
  struct Span {
    Clock::time_point start, end;
  };
  std::barrier gate(threads);
  std::vector<std::array<Span, kSweeps>> spans(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> crew;
    crew.reserve(spans.size());
    for (int t = 0; t < threads; ++t) {
      crew.emplace_back([&gate, &work, &mine = spans[static_cast<std::size_t>(t)], t] {
        for (Span& span : mine) {
          gate.arrive_and_wait();
          span.start = Clock::now();
          work(t);
          span.end = Clock::now();
        }
      });
    }
  }
  double best = 1e30;
  for (std::size_t sweep = 0; sweep < kSweeps; ++sweep) {
    auto [start, end] = spans[0][sweep];
    for (const auto& thread : spans) {
      start = std::min(start, thread[sweep].start);
      end = std::max(end, thread[sweep].end);
    }
    best = std::min(best, std::chrono::duration<double>(end - start).count());
  }
  return best;
}

// ---- reading ----

// Reads `size` bytes as kStreams interleaved streams: hardware prefetch follows one stream a page,
// and with one stream a core was seen to reach only 0.7x of what it reaches with four.
// VECTOR and the operations on it are those of one instruction set.
#define BLOCKDRAFT_READ(NAME, TARGET, VECTOR, LOAD, XOR, ZERO, KEEP)              \
  __attribute__((target(TARGET))) void NAME(const std::uint8_t* data, std::size_t size) { \
    VECTOR sums[kStreams] = {ZERO, ZERO, ZERO, ZERO};                                     \
    const std::size_t part = size / kStreams;                                             \
    for (std::size_t at = 0; at < part; at += kStep) {                                    \
      for (std::size_t s = 0; s < kStreams; ++s) {                                        \
        for (std::size_t i = 0; i < kStep; i += sizeof(VECTOR)) {                         \
          const std::uint8_t* next = data + s * part + at + i;                            \
          sums[s] = XOR(sums[s], LOAD(reinterpret_cast<const VECTOR*>(next)));            \
        }                                                                                 \
      }                                                                                   \
    }                                                                                     \
    for (VECTOR& sum : sums) asm volatile("" : KEEP(sum));                                \
  }

BLOCKDRAFT_READ(read_sse2, "sse2", __m128i, _mm_load_si128, _mm_xor_si128, _mm_setzero_si128(),
                "+x")
BLOCKDRAFT_READ(read_avx2, "avx2", __m256i, _mm256_load_si256, _mm256_xor_si256,
                _mm256_setzero_si256(), "+x")
BLOCKDRAFT_READ(read_avx512, "avx512f", __m512i, _mm512_load_si512, _mm512_xor_si512,
                _mm512_setzero_si512(), "+v")

#undef BLOCKDRAFT_READ

using ReadFunction = void (*)(const std::uint8_t*, std::size_t);

ReadFunction best_reader() {
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
  return read_sse2;
}

// ---- multiplying ----

// Each runs kPeakSteps steps of kChains products and returns its multiply-accumulates.
using PeakFunction = double (*)();

__attribute__((target("avx512f,avx512bw,avx512vnni"))) double peak_avx512vnni() {
  __m512i sums[kChains];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  __m512i a = _mm512_set1_epi8(3);
  __m512i b = _mm512_set1_epi8(-2);
  for (std::int64_t step = 0; step < kPeakSteps; ++step) {
    asm volatile("" : "+v"(a), "+v"(b));
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  for (auto& sum : sums) asm volatile("" : "+v"(sum));
  return double(kPeakSteps) * kChains * 64;
}

__attribute__((target("avx2"))) double peak_avx2() {
  __m256i sums[kChains];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  __m256i a = _mm256_set1_epi8(3);
  __m256i b = _mm256_set1_epi8(-2);
  __m256i ones = _mm256_set1_epi16(1);
  for (std::int64_t step = 0; step < kPeakSteps; ++step) {
    for (auto& sum : sums) {
      opaque(a);  // else the product is computed once for all sums
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  for (auto& sum : sums) opaque(sum);
  return double(kPeakSteps) * kChains * 32;
}

double peak_sse2() {
  __m128i sums[kChains];
  for (auto& sum : sums) sum = _mm_setzero_si128();
  __m128i a = _mm_set1_epi16(3);
  __m128i b = _mm_set1_epi16(-2);
  for (std::int64_t step = 0; step < kPeakSteps; ++step) {
    for (auto& sum : sums) {
      opaque(a);
      sum = _mm_add_epi32(sum, _mm_madd_epi16(a, b));
    }
  }
  for (auto& sum : sums) opaque(sum);
  return double(kPeakSteps) * kChains * 8;
}

PeakFunction best_peak() {
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) {
    return peak_avx512vnni;
  }
  if (__builtin_cpu_supports("avx2")) return peak_avx2;
  return peak_sse2;
}

void check_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; it must be in [1, " +
                                std::to_string(kMaxThreads) + "]");
  }
}

struct Unmap {
  std::size_t size;
  void operator()(std::uint8_t* data) const { munmap(data, size); }
};

}  // namespace

double measure_read_bandwidth(int threads, std::size_t bytes) {
  check_threads(threads);
  const std::size_t count = static_cast<std::size_t>(threads);
  const std::size_t share = bytes / count / (kStreams * kStep) * (kStreams * kStep);
  if (share == 0) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes are too few for " +
                                std::to_string(threads) + " threads");
  }
  const std::size_t size = share * count + kHugePage;
  void* mapped =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const std::unique_ptr<std::uint8_t, Unmap> data(static_cast<std::uint8_t*>(mapped), Unmap{size});
  madvise(data.get(), size, MADV_HUGEPAGE);  // a wish: it costs nothing where it is not granted
  std::memset(data.get(), 1, size);          // every page its own memory, not the shared zero page

  const ReadFunction read = best_reader();
  const double seconds = best_seconds(threads, [&](int t) {
    read(data.get() + static_cast<std::size_t>(t) * share, share);
  });
  return double(share * count) / seconds / 1e9;
}

double measure_int8_peak(int threads) {
  check_threads(threads);
  const PeakFunction peak = best_peak();
  std::vector<double> macs(static_cast<std::size_t>(threads));
  const double seconds =
      best_seconds(threads, [&](int t) { macs[static_cast<std::size_t>(t)] = peak(); });
  double total = 0;
  for (const double part : macs) total += part;
  return total / seconds / 1e9;
}

}  // namespace blockdraft
