// Sine and cosine in binary64 with plain multiplications and additions, the same on every machine.
#pragma once

#include <cmath>
#include <utility>

namespace blockdraft {

// (cos x, sin x) for 0 <= x < 2^27, to about 1e-15; a float rounded from it is the nearest in all but rare ties.
inline std::pair<double, double> cos_sin(double x) {
  const double n = std::floor(x * 0.63661977236758134308 + 0.5);
  double r = x - n * 1.57079632673412561417e+00;  // pi / 2 in three parts of 33 bits: products with n are exact
  r -= n * 6.07710050630396597660e-11;
  r -= n * 2.02226624879595063154e-21;
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;
  for (const double c : {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0}) s = s * z + c;
  s = r + r * (z * s);
  double c = 1.0 / 20922789888000.0;
  for (const double k : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5}) c = c * z + k;
  c = 1.0 + z * c;
  switch (static_cast<long long>(n) & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

}  // namespace blockdraft
