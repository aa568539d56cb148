// Multipliers for hashes of tokens that no prompt can aim at: drawn once a process. Nothing but time depends on them.
#pragma once

#include <cstdint>
#include <random>

namespace blockdraft {

// Spreads numbers that differ little over all bits, the highest included: the finalizer of MurmurHash3.
inline uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

// An odd number for each index.
inline uint64_t hash_multiplier(uint64_t index) {
  static const uint64_t secret = [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  return mixed(secret + index * 0x9e3779b97f4a7c15ULL) | 1;
}

}  // namespace blockdraft
