// Standard Gumbel noise of token ids: -log(E), the E of all ids independent and exponential.
//
// A function of (seed, choice, position, id) and nothing else. The smallest E of a block of 64 ids is drawn as such
// (rate 64), with the id that has it; the others are that plus an exponential of their own. By memorylessness these are
// 64 independent exponentials, and a search for the best score is done with most blocks after one draw. Every
// exponential is -log(1 - v), v from 64 bits, precise towards both ends. Logarithms are our own, in binary64 `+ - * /`
// that may not be contracted, so the noise is the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>

#include "sample.h"

namespace blockdraft {

inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The n-th draw of a stream (splitmix64).
inline uint64_t draw(uint64_t stream, uint64_t n) { return mix64(stream + kGolden * (n + 1)); }

// Streams of 64 random bits of one (seed, choice, position).
struct NoiseKey {
  uint64_t block, winner, id;
};

inline NoiseKey noise_key(uint64_t seed, uint32_t choice, int64_t position) {
  uint64_t k = mix64(seed + kGolden);
  k = mix64((k ^ static_cast<uint64_t>(position)) + kGolden);
  k = mix64((k ^ choice) + kGolden);
  return {draw(k, 0), draw(k, 1), draw(k, 2)};
}

// 2 atanh(f) = log((1 + f) / (1 - f)) for |f| <= 0.1716: the series to f^21 is below one unit of the last place.
inline double twice_atanh(double f) {
  const double s = f * f;
  double p = 1.0 / 21;
  p = p * s + 1.0 / 19;
  p = p * s + 1.0 / 17;
  p = p * s + 1.0 / 15;
  p = p * s + 1.0 / 13;
  p = p * s + 1.0 / 11;
  p = p * s + 1.0 / 9;
  p = p * s + 1.0 / 7;
  p = p * s + 1.0 / 5;
  p = p * s + 1.0 / 3;
  return 2 * f + 2 * f * (s * p);
}

// Natural logarithm of a positive normal number.
inline double log_positive(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    ++exponent;
  }
  const double e = exponent;
  return e * 6.93147180369123816490e-01 + (twice_atanh((m - 1) / (m + 1)) + e * 1.90821492927058770002e-10);
}

// -log(1 - v), v = (bits + 1/2) / 2^64: at least v. 1 - v comes from the complement of the bits, so that neither end
// loses precision.
inline double exponential(uint64_t bits) {
  const double v = (static_cast<double>(bits) + 0.5) * 0x1p-64;
  return v < 0.29 ? twice_atanh(v / (2 - v)) : -log_positive((static_cast<double>(~bits) + 0.5) * 0x1p-64);
}

// The noise of a block of 64 ids.
struct BlockNoise {
  double smallest;
  uint32_t winner;  // the id whose exponential is the smallest

  BlockNoise(const NoiseKey& key, uint64_t block, uint64_t bits)
      : smallest(exponential(bits) * (1.0 / kScanBlock)),
        winner(static_cast<uint32_t>(block * kScanBlock + draw(key.winner, block) % kScanBlock)) {}

  double gumbel(uint32_t id, uint64_t bits) const {
    return -log_positive(id == winner ? smallest : smallest + exponential(bits));
  }
};

inline double noise_of(const NoiseKey& key, uint32_t id) {
  const uint64_t block = id / kScanBlock;
  return BlockNoise(key, block, draw(key.block, block)).gumbel(id, draw(key.id, id));
}

}  // namespace blockdraft
