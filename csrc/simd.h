// Sixteen float or int lanes as one value, on three instruction sets.
//
// Included by kernels_*.cpp only, once per translation unit, with BD_ISA (0 scalar, 1 AVX2, 2 AVX-512) and BD_NS set.
// Every function is lane-wise IEEE arithmetic, so one kernel source gives the same bits on each path; lanes are
// outputs or the fixed partial sums of docs/numerics.md section 4, never a machine's vector width.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#if BD_ISA > 0
#include <immintrin.h>
#endif

namespace blockdraft::BD_NS {

#if BD_ISA == 2

using vf = __m512;
using vi = __m512i;

inline vf load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
inline vf set1(float x) { return _mm512_set1_ps(x); }
inline vf zero() { return _mm512_setzero_ps(); }
inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf select_lt(vf a, vf b, vf yes, vf no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
inline vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline vf load_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline void store_half(uint16_t* p, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline vf from_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline vf from_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline vf swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); }
inline vi seti(int32_t x) { return _mm512_set1_epi32(x); }
inline vi zeroi() { return _mm512_setzero_si512(); }
inline vi addi(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi andi(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi maxi(vi a, vi b) { return _mm512_max_epi32(a, b); }
template <int N>
inline vi shli(vi a) { return _mm512_slli_epi32(a, N); }
inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
inline vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
inline vi bits(vf a) { return _mm512_castps_si512(a); }
inline vf as_float(vi a) { return _mm512_castsi512_ps(a); }
inline int32_t hmaxi(vi a) { return _mm512_reduce_max_epi32(a); }
inline void store_i8(int8_t* p, vi a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a)); }
inline float fold(vf a) {
  __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float fold_max(vf a) {
  __m256 s = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

#elif BD_ISA == 1

struct vf { __m256 a, b; };
struct vi { __m256i a, b; };

inline vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline vf set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline vf zero() { return set1(0.0f); }
inline vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline vf add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline vf sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline vf mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline vf div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline vf vmax(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline vf vmin(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline vf select_lt(vf x, vf y, vf yes, vf no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline vf load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline vf load_bf16(const uint16_t* p) {
  const auto half = [](const uint16_t* h) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(h));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  };
  return {half(p), half(p + 8)};
}
inline void store_half(uint16_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline vf from_u8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
inline vf from_i8(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
inline vf swap_pairs(vf x) { return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}; }
inline vi seti(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
inline vi zeroi() { return seti(0); }
inline vi addi(vi x, vi y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline vi andi(vi x, vi y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline vi maxi(vi x, vi y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
template <int N>
inline vi shli(vi x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
inline vf to_float(vi x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline vi to_int(vf x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline vi bits(vf x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline vf as_float(vi x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline int32_t hmaxi(vi x) {
  const __m256i m = _mm256_max_epi32(x.a, x.b);
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
inline void store_i8(int8_t* p, vi x) {
  const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
inline float fold(vf x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float fold_max(vf x) {
  const __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
#else

struct vf { float v[16]; };
struct vi { int32_t v[16]; };

template <class R, class F>
inline R lanes(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
inline vf load(const float* p) { return lanes<vf>([&](int i) { return p[i]; }); }
inline void store(float* p, const vf& a) { std::memcpy(p, a.v, sizeof a.v); }
inline vf set1(float x) { return lanes<vf>([&](int) { return x; }); }
inline vf zero() { return set1(0.0f); }
inline vf fma(const vf& a, const vf& b, const vf& c) { return lanes<vf>([&](int i) { return std::fmaf(a.v[i], b.v[i], c.v[i]); }); }
inline vf add(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] + b.v[i]; }); }
inline vf sub(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] - b.v[i]; }); }
inline vf mul(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] * b.v[i]; }); }
inline vf div(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] / b.v[i]; }); }
inline vf vmax(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline vf vmin(const vf& a, const vf& b) { return lanes<vf>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline vf select_lt(const vf& a, const vf& b, const vf& yes, const vf& no) {
  return lanes<vf>([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
inline vf load_f16(const uint16_t* p) { return lanes<vf>([&](int i) { return f16_to_f32(p[i]); }); }
inline vf load_bf16(const uint16_t* p) { return lanes<vf>([&](int i) { return bf16_to_f32(p[i]); }); }
inline void store_half(uint16_t* p, const vf& a) { for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.v[i]); }
inline vf from_u8(const uint8_t* p) { return lanes<vf>([&](int i) { return static_cast<float>(p[i]); }); }
inline vf from_i8(const uint8_t* p) { return lanes<vf>([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); }); }
inline vf swap_pairs(const vf& a) { return lanes<vf>([&](int i) { return a.v[i ^ 1]; }); }
inline vi seti(int32_t x) { return lanes<vi>([&](int) { return x; }); }
inline vi zeroi() { return seti(0); }
inline vi addi(const vi& a, const vi& b) { return lanes<vi>([&](int i) { return a.v[i] + b.v[i]; }); }
inline vi andi(const vi& a, const vi& b) { return lanes<vi>([&](int i) { return a.v[i] & b.v[i]; }); }
inline vi maxi(const vi& a, const vi& b) { return lanes<vi>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
template <int N>
inline vi shli(const vi& a) { return lanes<vi>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N); }); }
inline vf to_float(const vi& a) { return lanes<vf>([&](int i) { return static_cast<float>(a.v[i]); }); }
// Callers keep values in the int range; what is outside or NaN gives INT_MIN, as the vector instructions do.
inline vi to_int(const vf& a) {
  return lanes<vi>([&](int i) {
    const float x = a.v[i];
    return x > -2147483649.0f && x < 2147483648.0f ? static_cast<int32_t>(std::lrintf(x)) : INT32_MIN;
  });
}
inline vi bits(const vf& a) { vi r; std::memcpy(r.v, a.v, sizeof r.v); return r; }
inline vf as_float(const vi& a) { vf r; std::memcpy(r.v, a.v, sizeof r.v); return r; }
inline int32_t hmaxi(const vi& a) { int32_t m = a.v[0]; for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m; return m; }
inline void store_i8(int8_t* p, const vi& a) { for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]); }
inline float fold(vf a) {
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) a.v[i] = a.v[i] + a.v[i + n];
  return a.v[0];
}
inline float fold_max(vf a) {
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
  return a.v[0];
}

#endif

// A kernel whose operands fill the registers works on one machine vector of the sixteen lanes at a time.
#if BD_ISA == 1

using pf = __m256;
using pi = __m256i;
inline constexpr int kParts = 2;
inline pf part(const vf& x, int i) { return reinterpret_cast<const __m256*>(&x)[i]; }
inline void set_part(vf& x, int i, pf value) { reinterpret_cast<__m256*>(&x)[i] = value; }
inline pf part_set1(float x) { return _mm256_set1_ps(x); }
inline pi part_seti(int32_t x) { return _mm256_set1_epi32(x); }
inline pf fma(pf a, pf b, pf c) { return _mm256_fmadd_ps(a, b, c); }
inline pf mul(pf a, pf b) { return _mm256_mul_ps(a, b); }
inline pf to_float(pi a) { return _mm256_cvtepi32_ps(a); }
template <int N>
inline pi shli(pi a) { return _mm256_slli_epi32(a, N); }

#else

using pf = vf;
using pi = vi;
inline constexpr int kParts = 1;
inline pf part(const vf& x, int) { return x; }
inline void set_part(vf& x, int, pf value) { x = value; }
inline pf part_set1(float x) { return set1(x); }
inline pi part_seti(int32_t x) { return seti(x); }

#endif

// Functions of docs/numerics.md section 5, built from the operations above.
inline vf vexp(vf x) {
  const vf low = set1(-87.0f);
  const vf c = vmin(vmax(x, set1(-87.5f)), set1(88.0f));
  const vi n = to_int(mul(c, set1(1.44269504088896341f)));
  const vf nf = to_float(n);
  vf r = fma(nf, set1(-0.693145751953125f), c);
  r = fma(nf, set1(-1.42860682030941723e-6f), r);
  vf p = set1(1.0f / 720.0f);
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const vf scale = as_float(shli<23>(addi(n, seti(127))));
  return select_lt(c, low, zero(), mul(p, scale));
}
inline vf vtanh(vf u) {
  return sub(set1(1.0f), div(set1(2.0f), add(vexp(add(u, u)), set1(1.0f))));
}
inline vf vsilu(vf x) { return div(x, add(set1(1.0f), vexp(sub(zero(), x)))); }
inline vf vgelu(vf x) {
  const vf u = mul(set1(0.7978845608f), fma(mul(set1(0.044715f), x), mul(x, x), x));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), vtanh(u)));
}
// f16 storage of keys and values: saturated, so that stored values are always finite (NaN becomes 65504).
inline void store_f16(uint16_t* p, vf x) {
  const vf limit = set1(65504.0f);
  store_half(p, vmax(vmin(x, limit), sub(zero(), limit)));
}

}  // namespace blockdraft::BD_NS
