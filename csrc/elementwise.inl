// Row-wise work between matrix products (numerics.md sections 2, 4, 5, 6); compiled once per instruction set.

namespace blockdraft::BD_NS {

inline float inverse_rms(const float* x, int64_t n, float eps) {
  vf squares = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = load(x + i);
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(fold(squares) / static_cast<float>(n) + eps);
}

inline vf normed(const float* x, float r, const float* weight) { return mul(mul(load(x), set1(r)), load(weight)); }

// Exact sums of q over columns 0-15 and 16-31 of a group.
inline void half_sums(const int8_t* q, int32_t& t0, int32_t& t1) {
#if BD_ISA > 0
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  quads = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0x4e));
  quads = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0xb1));
  t0 = _mm256_cvtsi256_si32(quads);
  t1 = _mm256_extract_epi32(quads, 4);
#else
  t0 = t1 = 0;
  for (int i = 0; i < 16; ++i) t0 += q[i], t1 += q[i + 16];
#endif
}

inline void quantize_group(vf a, vf b, int8_t* q, QuantizedRows::Group& group) {
  const vi magnitude = seti(0x7fffffff);
  const int32_t max_bits = hmaxi(maxi(andi(bits(a), magnitude), andi(bits(b), magnitude)));
  float max;
  std::memcpy(&max, &max_bits, 4);
  const bool finite = max_bits < 0x7f800000, used = finite && max >= 0x1p-100f;
  const float scale = used ? max / 127.0f : finite ? 0.0f : NAN;
  if (used) {
    const vf inverse = set1(127.0f / max);
    store_i8(q, to_int(mul(a, inverse)));
    store_i8(q + 16, to_int(mul(b, inverse)));
  } else {
    std::memset(q, 0, kGroupCols);
  }
  int32_t t0, t1;
  half_sums(q, t0, t1);
  group = {scale, scale * static_cast<float>(t0 + t1), scale * static_cast<float>(t0), scale * static_cast<float>(t1),
           -(t0 + t1), -t0, -t1, 0};
}

// Columns [first, last) in groups; `value(i)` gives columns i to i + 15.
template <class Value>
inline void prepare_groups(const PrepareArgs& args, int64_t row, int64_t first, int64_t last, Value value) {
  QuantizedRows* const quantized = args.quantized;
  int64_t index = 0, step = 0;
  if (quantized) index = quantized->group_index(row, first), step = quantized->block_rows(row);
  float* out = args.out ? args.out + row * args.out_stride : nullptr;
  for (int64_t g = first; g < last; ++g, index += step) {
    const vf a = value(g * kGroupCols), b = value(g * kGroupCols + 16);
    if (quantized) quantize_group(a, b, quantized->q.data() + index * kGroupCols, quantized->groups[index]);
    if (out) {
      store(out + g * kGroupCols, a);
      store(out + g * kGroupCols + 16, b);
    }
  }
}

// With a norm the groups must be all of the row.
void prepare(const PrepareArgs& args, int64_t row, int64_t first, int64_t last) {
  const float* x = args.x + row * args.x_stride;
  const float* up = args.up + row * args.up_stride;
  if (args.norm_weight) {
    const float r = inverse_rms(x, args.cols, args.eps);
    prepare_groups(args, row, first, last, [&](int64_t i) { return normed(x + i, r, args.norm_weight + i); });
  } else if (!args.up) {
    prepare_groups(args, row, first, last, [&](int64_t i) { return load(x + i); });
  } else if (args.gate == Gate::Silu) {
    prepare_groups(args, row, first, last, [&](int64_t i) { return mul(vsilu(load(x + i)), load(up + i)); });
  } else {
    prepare_groups(args, row, first, last, [&](int64_t i) { return mul(vgelu(load(x + i)), load(up + i)); });
  }
}

void heads(const HeadArgs& args) {
  const vf scale = set1(args.scale);
  for (int h = 0; h < args.num_heads; ++h) {
    float* x = args.heads + static_cast<int64_t>(h) * args.head_dim;
    if (args.norm_weight) {
      const float r = inverse_rms(x, args.head_dim, args.eps);
      for (int i = 0; i < args.head_dim; i += 16) store(x + i, normed(x + i, r, args.norm_weight + i));
    }
    if (args.cos && args.interleaved) {
      for (int i = 0; i < args.rope_dims; i += 16) {
        const vf v = load(x + i);
        store(x + i, fma(v, load(args.cos + i), mul(swap_pairs(v), load(args.sin + i))));
      }
    } else if (args.cos) {
      const int half = args.rope_dims / 2;
      int i = 0;
      for (; i + 16 <= half; i += 16) {
        const vf a = load(x + i), b = load(x + i + half);
        store(x + i, fma(a, load(args.cos + i), mul(b, load(args.sin + i))));
        store(x + i + half, fma(b, load(args.cos + i + half), mul(a, load(args.sin + i + half))));
      }
      for (; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = std::fmaf(a, args.cos[i], b * args.sin[i]);
        x[i + half] = std::fmaf(b, args.cos[i + half], a * args.sin[i + half]);
      }
    }
    if (args.scale != 1.0f) {
      for (int i = 0; i < args.head_dim; i += 16) store(x + i, mul(load(x + i), scale));
    }
  }
}

void store_kv(const float* k, const float* v, int head_dim, int slot, uint16_t* keys, uint16_t* values) {
  alignas(64) uint16_t column[16];
  for (int i = 0; i < head_dim; i += 16) {
    store_f16(column, load(k + i));
    for (int j = 0; j < 16; ++j) keys[(i + j) * kChunk + slot] = column[j];
    store_f16(values + slot * head_dim + i, load(v + i));
  }
}

void norm_add(float* y, int64_t n, const float* weight, float eps, float* h) {
  const float r = inverse_rms(y, n, eps);
  for (int64_t i = 0; i < n; i += 16) store(h + i, add(load(h + i), normed(y + i, r, weight + i)));
}

inline vf capped(vf x, float cap) { return mul(set1(cap), vtanh(div(x, set1(cap)))); }

void scale_cap(float* x, int64_t n, float scale, float softcap) {
  for (int64_t i = 0; i < n; i += 16) {
    const vf v = mul(load(x + i), set1(scale));
    store(x + i, softcap > 0.0f ? capped(v, softcap) : v);
  }
}

}  // namespace blockdraft::BD_NS
