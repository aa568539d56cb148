// One part of a record of a packed tile, unpacked: its rows x 8 k-quads of weights, ready for integer products.
//
// `dot<First, Last>` adds the exact products of those quads with a row of activations. Compiled once per instruction set.

namespace blockdraft::BD_NS {

template <int Type>
inline constexpr Format kFormat = *find_format(Type);

#if BD_ISA == 2

template <int Type>
struct Quads {
  static constexpr Format F = kFormat<Type>;
  static constexpr int kLog2Offset = F.log2_offset;
  __m512i w[8];

  Quads(const uint8_t* p, int /* part */) {
    const auto vec = [&](int i) { return _mm512_loadu_si512(p + 64 * i); };
    if constexpr (F.bits == 8) {
      for (int j = 0; j < 8; ++j) w[j] = vec(j);
    } else if constexpr (F.bits <= 3) {
      const __m512i three = _mm512_set1_epi8(3);
      for (int j = 0; j < 2; ++j) {
        const __m512i v = vec(j);
        w[4 * j] = _mm512_and_si512(v, three);
        w[4 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 2), three);
        w[4 * j + 2] = _mm512_and_si512(_mm512_srli_epi16(v, 4), three);
        w[4 * j + 3] = _mm512_and_si512(_mm512_srli_epi16(v, 6), three);
      }
      if constexpr (F.bits == 3) add_plane1<2>(vec(2));
    } else {
      const __m512i low = _mm512_set1_epi8(15);
      for (int j = 0; j < 4; ++j) {
        const __m512i v = vec(j);
        w[j] = _mm512_and_si512(v, low);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
      }
      if constexpr (F.bits == 5) add_plane1<4>(vec(4));
      if constexpr (F.bits == 6) {
        const __m512i mask = _mm512_set1_epi8(0x30);
        for (int j = 0; j < 2; ++j) {
          const __m512i h = vec(4 + j);
          or_masked(w[4 * j], _mm512_slli_epi16(h, 4), mask);
          or_masked(w[4 * j + 1], _mm512_slli_epi16(h, 2), mask);
          or_masked(w[4 * j + 2], h, mask);
          or_masked(w[4 * j + 3], _mm512_srli_epi16(h, 2), mask);
        }
      }
      if constexpr (F.table) {
        alignas(16) uint8_t shifted[16];
        for (int i = 0; i < 16; ++i) shifted[i] = static_cast<uint8_t>(table_values(F.type)[i] + 128);
        const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(shifted)));
        for (int j = 0; j < 8; ++j) w[j] = _mm512_shuffle_epi8(table, w[j]);
      }
    }
  }

  static void or_masked(__m512i& a, __m512i b, __m512i mask) {
    a = _mm512_ternarylogic_epi64(a, b, mask, 0xf8);  // a | (b & mask)
  }

  template <int Bit>
  void add_plane1(__m512i h) {
    const __m512i mask = _mm512_set1_epi8(1 << Bit);
    shift_in<Bit, 0>(h, mask), shift_in<Bit, 1>(h, mask), shift_in<Bit, 2>(h, mask), shift_in<Bit, 3>(h, mask);
    shift_in<Bit, 4>(h, mask), shift_in<Bit, 5>(h, mask), shift_in<Bit, 6>(h, mask), shift_in<Bit, 7>(h, mask);
  }

  template <int Bit, int J>
  void shift_in(__m512i h, __m512i mask) {
    if constexpr (J < Bit) or_masked(w[J], _mm512_slli_epi16(h, Bit - J), mask);
    else or_masked(w[J], _mm512_srli_epi16(h, J - Bit), mask);
  }

  template <int First, int Last, int Rows>
  void dot(const int8_t* x, __m512i* sums) const {
#pragma GCC unroll 8
    for (int j = First; j < Last; ++j) {
#pragma GCC unroll 16
      for (int m = 0; m < Rows; ++m) {
        int32_t quad;
        std::memcpy(&quad, x + m * kGroupCols + 4 * j, 4);
        sums[m] = _mm512_dpbusd_epi32(sums[m], w[j], _mm512_set1_epi32(quad));
      }
    }
  }
};

#elif BD_ISA == 1

template <int Type>
struct Quads {
  static constexpr Format F = kFormat<Type>;
  // 8-bit and table values are multiplied as signed numbers (|w| and x with w's sign), so that VPMADDUBSW cannot saturate.
  static constexpr bool kSigned = F.bits == 8 || F.table;
  static constexpr int kLog2Offset = kSigned ? -1 : F.log2_offset;
  static constexpr int kSafe = kSigned ? 1 : F.bits <= 4 ? 8 : F.bits == 5 ? 4 : 2;  // quads whose int16 sums fit
  __m256i w[8];

  Quads(const uint8_t* p, int part) {
    const auto vec = [&](int i) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * i + 32 * part));
    };
    if constexpr (F.bits == 8) {
      for (int j = 0; j < 8; ++j) w[j] = _mm256_xor_si256(vec(j), _mm256_set1_epi8(-128));
    } else if constexpr (F.bits <= 3) {
      const __m256i three = _mm256_set1_epi8(3);
      for (int j = 0; j < 8; ++j) {
        w[j] = _mm256_and_si256(_mm256_srli_epi16(vec(j / 4), 2 * (j % 4)), three);
        if constexpr (F.bits == 3) w[j] = _mm256_or_si256(w[j], plane1(vec(2), j, 2));
      }
    } else {
      const __m256i low = _mm256_set1_epi8(15);
      for (int j = 0; j < 8; ++j) {
        __m256i v = _mm256_and_si256(_mm256_srli_epi16(vec(j % 4), j < 4 ? 0 : 4), low);
        if constexpr (F.bits == 5) v = _mm256_or_si256(v, plane1(vec(4), j, 4));
        if constexpr (F.bits == 6) {
          const __m256i bits2 = _mm256_and_si256(_mm256_srli_epi16(vec(4 + j / 4), 2 * (j % 4)), _mm256_set1_epi8(3));
          v = _mm256_or_si256(v, _mm256_slli_epi16(bits2, 4));
        }
        if constexpr (F.table) {
          const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table_values(F.type).data()));
          v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), v);
        }
        w[j] = v;
      }
    }
  }

  static __m256i plane1(__m256i h, int j, int bit) {
    const __m256i one = _mm256_and_si256(_mm256_srli_epi16(h, j), _mm256_set1_epi8(1));
    return _mm256_slli_epi16(one, bit);
  }

  template <int First, int Last, int Rows>
  void dot(const int8_t* x, __m256i* sums) const {
    for (int m = 0; m < Rows; ++m) sums[m] = dot<First, Last>(x + m * kGroupCols, sums[m]);
  }

  template <int First, int Last>
  __m256i dot(const int8_t* x, __m256i start) const {
    constexpr int step = kSafe < Last - First ? kSafe : Last - First;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int j = First; j < Last; j += step) {
      __m256i sum = _mm256_setzero_si256();
      for (int i = j; i < j + step; ++i) {
        int32_t quad;
        std::memcpy(&quad, x + 4 * i, 4);
        const __m256i xq = _mm256_set1_epi32(quad);
        const __m256i product = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(xq, w[i]))
                                        : _mm256_maddubs_epi16(w[i], xq);
        sum = i == j ? product : _mm256_add_epi16(sum, product);
      }
      start = _mm256_add_epi32(start, _mm256_madd_epi16(sum, ones));
    }
    return start;
  }
};

#else

template <int Type>
struct Quads {
  static constexpr Format F = kFormat<Type>;
  static constexpr int kLog2Offset = F.log2_offset;
  uint8_t w[8][64];

  Quads(const uint8_t* p, int /* part */) {
    for (int j = 0; j < 8; ++j) {
      for (int i = 0; i < 64; ++i) {
        const auto bit_pair = [&](const uint8_t* plane) { return (plane[64 * (j / 4) + i] >> (2 * (j % 4))) & 3; };
        int v;
        if constexpr (F.bits == 8) {
          v = p[64 * j + i];
        } else if constexpr (F.bits <= 3) {
          v = bit_pair(p);
          if constexpr (F.bits == 3) v |= ((p[128 + i] >> j) & 1) << 2;
        } else {
          v = (p[64 * (j % 4) + i] >> (j < 4 ? 0 : 4)) & 15;
          if constexpr (F.bits == 5) v |= ((p[256 + i] >> j) & 1) << 4;
          if constexpr (F.bits == 6) v |= bit_pair(p + 256) << 4;
          if constexpr (F.table) v = table_values(F.type)[v] + 128;
        }
        w[j][i] = static_cast<uint8_t>(v);
      }
    }
  }

  template <int First, int Last, int Rows>
  void dot(const int8_t* x, vi* sums) const {
    for (int m = 0; m < Rows; ++m)
      for (int j = First; j < Last; ++j)
        for (int r = 0; r < 16; ++r)
          for (int i = 0; i < 4; ++i) sums[m].v[r] += w[j][4 * r + i] * x[m * kGroupCols + 4 * j + i];
  }
};

#endif

}  // namespace blockdraft::BD_NS
