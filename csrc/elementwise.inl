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

inline void quantize_group(vf a, vf b, QuantizedRows& out, int64_t index) {
  const vi magnitude = seti(0x7fffffff);
  const int32_t max_bits = hmaxi(maxi(andi(bits(a), magnitude), andi(bits(b), magnitude)));
  float max;
  std::memcpy(&max, &max_bits, 4);
  float scale = 0.0f, inverse = 0.0f;
  const bool finite = max_bits < 0x7f800000;
  if (!finite) scale = NAN;
  else if (max >= 0x1p-100f) scale = max / 127.0f, inverse = 127.0f / max;
  vi qa = zeroi(), qb = zeroi();
  if (inverse > 0.0f) qa = to_int(mul(a, set1(inverse))), qb = to_int(mul(b, set1(inverse)));
  int8_t* q = out.q.data() + index * kGroupCols;
  store_i8(q, qa);
  store_i8(q + 16, qb);
  const int32_t t0 = hsumi(qa), t1 = hsumi(qb);
  out.scale[index] = scale;
  out.n0[index] = -t0, out.n1[index] = -t1, out.n[index] = -(t0 + t1);
  out.f0[index] = scale * static_cast<float>(t0);
  out.f1[index] = scale * static_cast<float>(t1);
  out.f[index] = scale * static_cast<float>(t0 + t1);
}

// With a norm the groups must be all of the row.
void prepare(const PrepareArgs& args, int64_t row, int64_t first_group, int64_t last_group) {
  const float* x = args.x + row * args.x_stride;
  const float* up = args.up ? args.up + row * args.up_stride : nullptr;
  const float r = args.norm_weight ? inverse_rms(x, args.cols, args.eps) : 0.0f;
  const auto value = [&](int64_t i) {
    if (args.norm_weight) return normed(x + i, r, args.norm_weight + i);
    if (!up) return load(x + i);
    const vf gate = load(x + i);
    return mul(args.gate == Gate::Silu ? vsilu(gate) : vgelu(gate), load(up + i));
  };
  for (int64_t g = first_group; g < last_group; ++g) {
    const vf a = value(g * kGroupCols), b = value(g * kGroupCols + 16);
    if (args.quantized) quantize_group(a, b, *args.quantized, args.quantized->group_index(row, g));
    if (args.out) {
      store(args.out + row * args.out_stride + g * kGroupCols, a);
      store(args.out + row * args.out_stride + g * kGroupCols + 16, b);
    }
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
