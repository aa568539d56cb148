// Matrix products over packed tiles (numerics.md section 3); compiled once per instruction set, after quads.inl.

namespace blockdraft::BD_NS {

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

// Those of one part of the rows.
template <int Type>
struct Part {
  using S = Scales<Type>;
  pf s0, s1, z0, z1;

  Part(const S& scales, int p) : s0(part(scales.s0, p)) {
    if constexpr (S::kHalves) s1 = part(scales.s1, p);
    if constexpr (has_minimum(S::F.scale)) {
      z0 = part(scales.z0, p);
      if constexpr (S::kHalves) z1 = part(scales.z1, p);
    }
  }
};

// Few rows are bound by memory. Where one stream of reads does not fill it (`reads_side_by_side`) they take several tiles
// side by side. With the 16 registers of AVX2 that costs more than it brings.
inline constexpr int kFewRows = BD_ISA == 2 ? 4 : 0, kSideBySide = 4;

inline constexpr int kRowsInStep = BD_ISA == 2 ? 8 : 1;

// How far ahead the weights of a stream are asked for: processors do not prefetch across a 4 KB page by themselves.
template <int T>
inline constexpr int kPrefetchBytes = T > 1 ? 1024 : 2048;

// Rows [row, row + MB) of one row block against T tiles that start `tile_bytes` apart; acc[t * MB + m].
template <int Type, int MB, int T>
void quantized_tiles(const uint8_t* w, int64_t tile_bytes, const QuantizedRows& x, int64_t row, vf* acc) {
  using Q = Quads<Type>;
  using S = Scales<Type>;
  constexpr Format F = kFormat<Type>;
  const int64_t groups = x.cols / kGroupCols, stride = x.block_rows(row), first = x.group_index(row, 0);
  const int8_t* xq = x.q.data() + first * kGroupCols;
  const auto initial = [](const int32_t* negated_sum) {
    if constexpr (Q::kLog2Offset < 0) return part_seti(0);
    else return shli<Q::kLog2Offset>(part_seti(*negated_sum));
  };
  pf sums[kParts][T][MB] = {};
  int parts = kParts;
  if constexpr (kParts > 1) asm("" : "+r"(parts));  // or the loop over them is unrolled, see below
  S scales[T]{};
  for (int64_t g = 0; g < groups; ++g, xq += stride * kGroupCols) {
    int64_t skip = 0;
    if constexpr (F.header_bytes > 0) {
      if (g % kGroupsPerSuperBlock == 0) {
        for (int t = 0; t < T; ++t) scales[t].load_super_block(w + t * tile_bytes);
        skip = F.header_bytes;
      }
    }
    w += skip;
    const QuantizedRows::Group* const info = x.groups.data() + first + g * stride;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const uint8_t* const record = w + t * tile_bytes;
      for (int line = 0; line < F.group_bytes; line += 64) __builtin_prefetch(record + kPrefetchBytes<T> + line);
      scales[t].load_group(record + F.plane_bytes());
      for (int p = 0; p < parts; ++p) {
        const int8_t* xg = xq;
        if constexpr (kParts > 1) asm("" : "+r"(xg));  // or broadcasts of x are kept in memory for the other part
        const Q quads(record, p);
        const Part<Type> s(scales[t], p);
        const auto accumulate = [&](int m, pi a, pi b) {
          const pf xs = part_set1(info[m].scale);
          pf sum = sums[p][t][m];
          if constexpr (S::kHalves) {
            sum = fma(to_float(a), mul(s.s0, xs), sum);
            sum = fma(to_float(b), mul(s.s1, xs), sum);
            if constexpr (has_minimum(F.scale)) {
              sum = fma(s.z0, part_set1(info[m].f0), sum);
              sum = fma(s.z1, part_set1(info[m].f1), sum);
            }
          } else {
            sum = fma(to_float(a), mul(s.s0, xs), sum);
            if constexpr (has_minimum(F.scale)) sum = fma(s.z0, part_set1(info[m].f), sum);
          }
          sums[p][t][m] = sum;
        };
        // Rows go through the quads in step, as many as registers hold: products of one row wait for each other.
        constexpr int step = T > 1 ? 1 : MB < kRowsInStep ? MB : kRowsInStep;
#pragma GCC unroll 16
        for (int m = 0; m < MB; m += step) {
          pi a[step], b[step];
          const int8_t* const xm = xg + m * kGroupCols;
#pragma GCC unroll 16
          for (int i = 0; i < step; ++i) a[i] = initial(S::kHalves ? &info[m + i].n0 : &info[m + i].n);
          quads.template dot<0, S::kHalves ? 4 : 8, step>(xm, a);
          if constexpr (S::kHalves) {
#pragma GCC unroll 16
            for (int i = 0; i < step; ++i) b[i] = initial(&info[m + i].n1);
            quads.template dot<4, 8, step>(xm, b);
          }
#pragma GCC unroll 16
          for (int i = 0; i < step; ++i) accumulate(m + i, a[i], b[i]);
        }
      }
    }
    w += F.group_bytes;
  }
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 16
    for (int m = 0; m < MB; ++m)
      for (int p = 0; p < kParts; ++p) set_part(acc[t * MB + m], p, sums[p][t][m]);
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

// Cuts the rows into blocks of 16 and less; `tile_fn<MB>(row, acc)` computes MB of them. Which block a row falls in
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
#if BD_ISA == 2
    else if (left == 7) take.template operator()<7>();
    else if (left == 6) take.template operator()<6>();
    else if (left == 5) take.template operator()<5>();
#endif
    else if (left >= 4) take.template operator()<4>();
#if BD_ISA == 2
    else if (left == 3) take.template operator()<3>();
#endif
    else if (left >= 2) take.template operator()<2>();
    else
#endif
      take.template operator()<1>();
  }
}

template <int Type>
void matmul_quantized(const MatmulArgs& args, int64_t first, int64_t last) {
  const Matrix& weight = *args.weight;
  const int64_t tile_bytes = static_cast<int64_t>(weight.tile_bytes());
  int64_t tile = first;
  if constexpr (kFewRows > 0) {
    const auto side_by_side = [&]<int MB>(int64_t row) {
      vf acc[kSideBySide * MB];
      quantized_tiles<Type, MB, kSideBySide>(weight.tile(tile), tile_bytes, *args.x, row, acc);
      for (int t = 0; t < kSideBySide; ++t) store_tile(args, tile + t, row, acc + t * MB, MB);
    };
    for (; args.side_by_side && args.rows <= kFewRows && tile + kSideBySide <= last; tile += kSideBySide) {
      int64_t row = 0;
      if (args.rows == 4) side_by_side.template operator()<4>(row), row += 4;
      if (args.rows == 3) side_by_side.template operator()<3>(row), row += 3;
      if (args.rows - row >= 2) side_by_side.template operator()<2>(row), row += 2;
      if (args.rows > row) side_by_side.template operator()<1>(row);
    }
  }
  for (; tile < last; ++tile) {
    for_row_blocks(args, tile, [&]<int MB>(int64_t row, vf* acc) {
      quantized_tiles<Type, MB, 1>(weight.tile(tile), tile_bytes, *args.x, row, acc);
    });
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
