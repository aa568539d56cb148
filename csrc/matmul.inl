// Matrix products over packed tiles (numerics.md section 3); compiled once per instruction set.
//
// `Quads<F>` holds one record of a tile, unpacked: 16 rows x 8 k-quads. `dot` adds the exact products of some quads with
// a row of activations. The driver above it is the same source on every path.

namespace blockdraft::BD_NS {

template <int Type>
inline constexpr Format kFormat = *find_format(Type);

#if BD_ISA == 2

template <int Type>
struct Quads {
  static constexpr Format F = kFormat<Type>;
  static constexpr int kLog2Offset = F.log2_offset;
  __m512i w[8];

  explicit Quads(const uint8_t* p) {
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

  template <int First, int Last>
  __m512i dot(const int8_t* x, __m512i start) const {
    for (int j = First; j < Last; ++j) {
      int32_t quad;
      std::memcpy(&quad, x + 4 * j, 4);
      start = _mm512_dpbusd_epi32(start, w[j], _mm512_set1_epi32(quad));
    }
    return start;
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
  __m256i w[8][2];

  explicit Quads(const uint8_t* p) {
    for (int half = 0; half < 2; ++half) {
      const auto vec = [&](int i) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * i + 32 * half));
      };
      if constexpr (F.bits == 8) {
        for (int j = 0; j < 8; ++j) w[j][half] = _mm256_xor_si256(vec(j), _mm256_set1_epi8(-128));
      } else if constexpr (F.bits <= 3) {
        const __m256i three = _mm256_set1_epi8(3);
        for (int j = 0; j < 8; ++j) {
          __m256i v = _mm256_and_si256(_mm256_srli_epi16(vec(j / 4), 2 * (j % 4)), three);
          if constexpr (F.bits == 3) v = _mm256_or_si256(v, plane1(vec(2), j, 2));
          w[j][half] = v;
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
          w[j][half] = v;
        }
      }
    }
  }

  static __m256i plane1(__m256i h, int j, int bit) {
    const __m256i one = _mm256_and_si256(_mm256_srli_epi16(h, j), _mm256_set1_epi8(1));
    return _mm256_slli_epi16(one, bit);
  }

  template <int First, int Last>
  vi dot(const int8_t* x, vi start) const {
    return {dot_half<First, Last>(x, start.a, 0), dot_half<First, Last>(x, start.b, 1)};
  }

  template <int First, int Last>
  __m256i dot_half(const int8_t* x, __m256i start, int half) const {
    constexpr int step = kSafe < Last - First ? kSafe : Last - First;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int j = First; j < Last; j += step) {
      __m256i sum = _mm256_setzero_si256();
      for (int i = j; i < j + step; ++i) {
        int32_t quad;
        std::memcpy(&quad, x + 4 * i, 4);
        const __m256i xq = _mm256_set1_epi32(quad), wq = w[i][half];
        const __m256i product = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(wq), _mm256_sign_epi8(xq, wq))
                                        : _mm256_maddubs_epi16(wq, xq);
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

  explicit Quads(const uint8_t* p) {
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

  template <int First, int Last>
  vi dot(const int8_t* x, vi start) const {
    for (int j = First; j < Last; ++j)
      for (int r = 0; r < 16; ++r)
        for (int i = 0; i < 4; ++i) start.v[r] += w[j][4 * r + i] * x[4 * j + i];
    return start;
  }
};

#endif

// Group scales and minima of a record, as binary32 over the tile's 16 rows.
template <int Type>
struct Scales {
  static constexpr Format F = kFormat<Type>;
  static constexpr bool kHalves = F.scale == ScaleKind::K16 || F.scale == ScaleKind::K16Min;
  vf d, dmin;       // of the super-block
  vf s0, s1, z0, z1;  // s1, z1: second half, where the type has halves

  void load_super_block(const uint8_t* p) {
    d = load_f16(reinterpret_cast<const uint16_t*>(p));
    if constexpr (has_minimum(F.scale)) dmin = sub(zero(), load_f16(reinterpret_cast<const uint16_t*>(p) + 16));
  }

  void load_group(const uint8_t* p) {
    if constexpr (F.scale == ScaleKind::F16 || F.scale == ScaleKind::F16Min) {
      s0 = load_f16(reinterpret_cast<const uint16_t*>(p));
      if constexpr (F.scale == ScaleKind::F16Min) z0 = load_f16(reinterpret_cast<const uint16_t*>(p) + 16);
    } else if constexpr (F.scale == ScaleKind::E8M0) {
      float s[16];
      for (int r = 0; r < 16; ++r) s[r] = e8m0_half(p[r]);
      s0 = load(s);
    } else if constexpr (F.scale == ScaleKind::K32) {
      s0 = mul(d, from_i8(p));
    } else if constexpr (F.scale == ScaleKind::K32Min) {
      s0 = mul(d, from_u8(p));
      z0 = mul(dmin, from_u8(p + 16));
    } else if constexpr (F.scale == ScaleKind::K16) {
      s0 = mul(d, from_i8(p));
      s1 = mul(d, from_i8(p + 16));
    } else {
      uint8_t low[32], high[32];
      for (int i = 0; i < 32; ++i) low[i] = p[i] & 15, high[i] = p[i] >> 4;
      s0 = mul(d, from_u8(low)), s1 = mul(d, from_u8(low + 16));
      z0 = mul(dmin, from_u8(high)), z1 = mul(dmin, from_u8(high + 16));
    }
  }

  static float e8m0_half(uint8_t e) {  // 2^(e - 128)
    const uint32_t word = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

// How far ahead weights are asked for: processors do not prefetch across a 4 KB page by themselves.
inline constexpr int kPrefetchBytes = 2048;

// Rows [row, row + MB) of one row block against one tile.
template <int Type, int MB>
void quantized_tile(const uint8_t* w, const QuantizedRows& x, int64_t row, vf* acc) {
  using Q = Quads<Type>;
  using S = Scales<Type>;
  constexpr Format F = kFormat<Type>;
  const int64_t groups = x.cols / kGroupCols, stride = x.block_rows(row), first = x.group_index(row, 0);
  const int8_t* xq = x.q.data() + first * kGroupCols;
  const auto initial = [](const int32_t* negated_sum) {
    if constexpr (Q::kLog2Offset < 0) return zeroi();
    else return shli<Q::kLog2Offset>(seti(*negated_sum));
  };
  vf sum[MB];
#pragma GCC unroll 16
  for (int m = 0; m < MB; ++m) sum[m] = zero();
  S scales{};
  for (int64_t g = 0; g < groups; ++g, w += F.group_bytes, xq += stride * kGroupCols) {
    if constexpr (F.header_bytes > 0) {
      if (g % kGroupsPerSuperBlock == 0) {
        scales.load_super_block(w);
        w += F.header_bytes;
      }
    }
    for (int line = 0; line < F.group_bytes; line += 64) __builtin_prefetch(w + kPrefetchBytes + line);
    const Q quads(w);
    scales.load_group(w + F.plane_bytes());
    const int64_t at = first + g * stride;
#pragma GCC unroll 16
    for (int m = 0; m < MB; ++m) {
      const int8_t* xm = xq + m * kGroupCols;
      const int64_t i = at + m;
      const vf xs = set1(x.groups[i].scale);
      if constexpr (S::kHalves) {
        const vi a = quads.template dot<0, 4>(xm, initial(&x.groups[i].n0));
        const vi b = quads.template dot<4, 8>(xm, initial(&x.groups[i].n1));
        sum[m] = fma(to_float(a), mul(scales.s0, xs), sum[m]);
        sum[m] = fma(to_float(b), mul(scales.s1, xs), sum[m]);
        if constexpr (has_minimum(F.scale)) {
          sum[m] = fma(scales.z0, set1(x.groups[i].f0), sum[m]);
          sum[m] = fma(scales.z1, set1(x.groups[i].f1), sum[m]);
        }
      } else {
        const vi a = quads.template dot<0, 8>(xm, initial(&x.groups[i].n));
        sum[m] = fma(to_float(a), mul(scales.s0, xs), sum[m]);
        if constexpr (has_minimum(F.scale)) sum[m] = fma(scales.z0, set1(x.groups[i].f), sum[m]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < MB; ++m) acc[m] = sum[m];
}

template <class T>
inline vf load_weights(const T* p);
template <>
inline vf load_weights<float>(const float* p) { return load(p); }
struct half_t { uint16_t bits; };
struct bfloat_t { uint16_t bits; };
template <>
inline vf load_weights<half_t>(const half_t* p) { return load_f16(&p->bits); }
template <>
inline vf load_weights<bfloat_t>(const bfloat_t* p) { return load_bf16(&p->bits); }

template <class T, int MB>
void float_tile(const uint8_t* w, const MatmulArgs& args, int64_t row, vf* acc) {
  const T* weights = reinterpret_cast<const T*>(w);
  const float* x = args.x_float + row * args.x_stride;
  const int64_t cols = args.weight->cols();
  vf sum[MB];
#pragma GCC unroll 16
  for (int m = 0; m < MB; ++m) sum[m] = zero();
  for (int64_t k = 0; k < cols; ++k) {
    const vf wk = load_weights(weights + k * kTileRows);
#pragma GCC unroll 16
    for (int m = 0; m < MB; ++m) sum[m] = fma(wk, set1(x[m * args.x_stride + k]), sum[m]);
  }
#pragma GCC unroll 16
  for (int m = 0; m < MB; ++m) acc[m] = sum[m];
}

inline void store_tile(const MatmulArgs& args, int64_t tile, int64_t row, const vf* acc, int count) {
  for (int m = 0; m < count; ++m) {
    float* y = args.y + (row + m) * args.y_stride + tile * kTileRows;
    vf value = acc[m];
    if (args.bias) value = add(value, load(args.bias + tile * kTileRows));
    if (args.accumulate) value = add(load(y), value);
    store(y, value);
  }
}

// Cuts the rows into blocks of 16, 8, 4, 2 and 1; `tile_fn<MB>(row, acc)` computes MB of them. Which block a row falls in
// changes speed, never bits: every output is its own chain.
template <class Fn>
void for_row_blocks(const MatmulArgs& args, int64_t tile, Fn tile_fn) {
  vf acc[kRowBlock];
  for (int64_t row = 0; row < args.rows;) {
    const int64_t block_end = row / kRowBlock * kRowBlock + kRowBlock;
    [[maybe_unused]] const int64_t left = (args.rows < block_end ? args.rows : block_end) - row;
    const auto take = [&]<int MB>() {
      tile_fn.template operator()<MB>(row, acc);
      store_tile(args, tile, row, acc, MB);
      row += MB;
    };
    // The scalar path takes rows one by one: it is a reference, and each block size costs compile time.
#if BD_ISA > 0
    if (left >= 16) take.template operator()<16>();
    else if (left >= 8) take.template operator()<8>();
    else if (left >= 4) take.template operator()<4>();
    else if (left >= 2) take.template operator()<2>();
    else
#endif
      take.template operator()<1>();
  }
}

template <int Type>
void matmul_quantized(const MatmulArgs& args, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; ++tile) {
    const uint8_t* w = args.weight->tile(tile);
    for_row_blocks(args, tile, [&]<int MB>(int64_t row, vf* acc) { quantized_tile<Type, MB>(w, *args.x, row, acc); });
  }
}

template <class T>
void matmul_float(const MatmulArgs& args, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; ++tile) {
    const uint8_t* w = args.weight->tile(tile);
    for_row_blocks(args, tile, [&]<int MB>(int64_t row, vf* acc) { float_tile<T, MB>(w, args, row, acc); });
  }
}

void matmul(const MatmulArgs& args, int64_t first, int64_t last) {
  switch (args.weight->format().type) {
    case GGMLType::F32: return matmul_float<float>(args, first, last);
    case GGMLType::F16: return matmul_float<half_t>(args, first, last);
    case GGMLType::BF16: return matmul_float<bfloat_t>(args, first, last);
#define BD_CASE(name) \
  case GGMLType::name: return matmul_quantized<static_cast<int>(GGMLType::name)>(args, first, last);
    BD_CASE(Q4_0) BD_CASE(Q4_1) BD_CASE(Q5_0) BD_CASE(Q5_1) BD_CASE(Q8_0) BD_CASE(Q2_K) BD_CASE(Q3_K)
    BD_CASE(Q4_K) BD_CASE(Q5_K) BD_CASE(Q6_K) BD_CASE(IQ4_NL) BD_CASE(IQ4_XS) BD_CASE(MXFP4)
#undef BD_CASE
  }
}

}  // namespace blockdraft::BD_NS
