// Attention over one chunk of stored keys and values, and the merge of chunks (numerics.md section 6).
//
// Lanes of scores are positions, lanes of outputs are dimensions; queries only share loads.

namespace blockdraft::BD_NS {

template <int N, int V>
void scores(const ChunkArgs& args, int first_query, float* out) {
  vf acc[N][V];
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) acc[i][v] = zero();
  for (int d = 0; d < args.head_dim; ++d) {
    if (args.first) {
      __builtin_prefetch(args.values + d * kChunk, 0, 2);
      __builtin_prefetch(args.values + d * kChunk + 32, 0, 2);
    }
    vf k[V];
    for (int v = 0; v < V; ++v) k[v] = load_f16(args.keys + d * kChunk + 16 * v);
    for (int i = 0; i < N; ++i) {
      const vf q = set1(args.query[first_query + i][d]);
      for (int v = 0; v < V; ++v) acc[i][v] = fma(q, k[v], acc[i][v]);
    }
  }
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) store(out + i * kChunk + 16 * v, acc[i][v]);
}

// Turns scores into weights, in place; positions outside [low, high) get weight 0.
inline void softmax(float* s, int low, int high, float softcap, Partial& partial) {
  vf x[4];
  for (int v = 0; v < 4; ++v) {
    if (softcap > 0.0f) store(s + 16 * v, capped(load(s + 16 * v), softcap));
  }
  for (int j = 0; j < low; ++j) s[j] = -INFINITY;
  for (int j = high; j < kChunk; ++j) s[j] = -INFINITY;
  vf max = load(s);
  for (int v = 0; v < 4; ++v) x[v] = load(s + 16 * v), max = vmax(max, x[v]);
  partial.max = fold_max(max);
  const vf m = set1(partial.max);
  vf sum = zero();
  for (int v = 0; v < 4; ++v) {
    const vf w = vexp(sub(x[v], m));
    store(s + 16 * v, w);
    sum = add(sum, w);
  }
  for (int j = 0; j < low; ++j) s[j] = 0.0f;
  for (int j = high; j < kChunk; ++j) s[j] = 0.0f;
  partial.sum = fold(sum);
}

template <int N, int V>
void weigh(const ChunkArgs& args, const float* w, int low, int high, int dim, Partial* partials) {
  vf acc[N][V];
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) acc[i][v] = zero();
  const uint16_t* upcoming = args.first ? args.upcoming : nullptr;
  for (int j = low; j < high; ++j) {
    if (upcoming) {
      for (int v = 0; v < V; v += 2) __builtin_prefetch(upcoming + j * args.head_dim + dim + 16 * v, 0, 2);
    }
    vf value[V];
    for (int v = 0; v < V; ++v) value[v] = load_f16(args.values + j * args.head_dim + dim + 16 * v);
    for (int i = 0; i < N; ++i) {
      const vf wj = set1(w[i * kChunk + j]);
      for (int v = 0; v < V; ++v) acc[i][v] = fma(wj, value[v], acc[i][v]);
    }
  }
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < V; ++v) store(partials[i].out + dim + 16 * v, acc[i][v]);
}

template <int N>
void attend_queries(const ChunkArgs& args, Partial* partials) {
  alignas(64) float s[N * kChunk];
  int low = kChunk, high = 0;
  for (int i = 0; i < N; ++i) {
    low = args.low[i] < low ? args.low[i] : low;
    high = args.high[i] > high ? args.high[i] : high;
  }
  // Scores of whole vectors up to the last visible position; what lies beyond is masked before use.
  if (high > 48) scores<N, 4>(args, 0, s);
  else if (high > 32) scores<N, 3>(args, 0, s);
  else if (high > 16) scores<N, 2>(args, 0, s);
  else scores<N, 1>(args, 0, s);
  const int computed = (high + 15) / 16 * 16;
  for (int i = 0; i < N; ++i) {
    for (int j = computed; j < kChunk; ++j) s[i * kChunk + j] = 0.0f;
    softmax(s + i * kChunk, args.low[i], args.high[i], args.softcap, partials[i]);
  }
  int dim = 0;
  for (; dim + 64 <= args.head_dim; dim += 64) weigh<N, 4>(args, s, low, high, dim, partials);
  for (; dim < args.head_dim; dim += 16) weigh<N, 1>(args, s, low, high, dim, partials);
}

void attend_chunk(const ChunkArgs& args, Partial* partials) {
  switch (args.num_queries) {
    case 1: return attend_queries<1>(args, partials);
    case 2: return attend_queries<2>(args, partials);
    case 3: return attend_queries<3>(args, partials);
    default: return attend_queries<4>(args, partials);
  }
}

void merge(Partial& into, const Partial& from, int head_dim) {
  const float max = into.max > from.max ? into.max : from.max;
  alignas(64) float e[16] = {into.max - max, from.max - max};
  store(e, vexp(load(e)));
  into.max = max;
  into.sum = std::fmaf(into.sum, e[0], from.sum * e[1]);
  const vf a = set1(e[0]), b = set1(e[1]);
  for (int d = 0; d < head_dim; d += 16) store(into.out + d, fma(load(into.out + d), a, mul(load(from.out + d), b)));
}

void finish(const Partial& partial, int head_dim, float* out) {
  const vf inverse = set1(1.0f / partial.sum);
  for (int d = 0; d < head_dim; d += 16) store(out + d, mul(load(partial.out + d), inverse));
}

}  // namespace blockdraft::BD_NS
