// Loops of the sampler over whole rows and blocks (sample.h); compiled once per instruction set, in namespace BD_NS.
//
// Included after simd.h. In binary64 plain loops that compilers turn into vectors: each operation is one IEEE or
// integer operation per element, so the bits do not depend on how.

#include <bit>

namespace blockdraft::BD_NS::scan {

inline void block_max(const float* logits, int64_t num_blocks, float* maxima) {
  for (int64_t b = 0; b < num_blocks; ++b, logits += kScanBlock) {
    vf m = set1(-__builtin_inff());
    for (int i = 0; i < kScanBlock; i += 16) m = vmax(load(logits + i), m);  // vmax(NaN, m) is m
    maxima[b] = fold_max(m);
  }
}

// exp(x) for -100 <= x <= 0, to 1e-13.
inline double exp_nonpositive(double x) {
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, which is then in the low bits
  const double shifted = x * 1.44269504088896338700e+00 + kMagic;
  const double n = shifted - kMagic;
  double r = x - n * 6.93147180369123816490e-01;
  r = r - n * 1.90821492927058770002e-10;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

// Clamping stands in loops of its own: merged into exp it becomes a branch that keeps the compiler from vectors.
inline void block_scale(const float* maxima, int64_t num_blocks, float max, double temperature, double* scale) {
  const double top = max;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const double x = (static_cast<double>(maxima[b]) - top) / temperature;
    scale[b] = x > -100.0 ? x : -100.0;
  }
  for (int64_t b = 0; b < num_blocks; ++b) scale[b] = exp_nonpositive(scale[b]) * (1 + 1e-9);
}

inline void weigh(const float* block, float max, uint64_t* weight, int32_t* bucket) {
  double x[kScanBlock];
  const double top = max;
  for (int i = 0; i < kScanBlock; ++i) {
    const double below = static_cast<double>(block[i]) - top;
    x[i] = below > -100.0 ? below : -100.0;  // NaN: the least
  }
  for (int i = 0; i < kScanBlock; ++i) {
    const double rounded = exp_nonpositive(x[i]) * 0x1p40 + 0x1p52;  // the integer is in the low 52 bits
    weight[i] = std::bit_cast<uint64_t>(rounded) & ((uint64_t{1} << 52) - 1);
  }
  for (int i = 0; i < kScanBlock; ++i) {
    const float below = (max - block[i]) * kBucketsPerNat;
    bucket[i] = static_cast<int32_t>(below < kMassBuckets - 1.0f ? below : kMassBuckets - 1.0f);  // NaN: the last
  }
}

}  // namespace blockdraft::BD_NS::scan

namespace blockdraft::BD_NS {

inline constexpr ScanKernels kScan = {scan::block_max, scan::block_scale, scan::weigh};

}  // namespace blockdraft::BD_NS
