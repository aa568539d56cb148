// What a drafter computes besides a decoder's layers (numerics.md section 8); compiled once per instruction set.

namespace blockdraft::BD_NS {

void convolve(const ConvolveArgs& args, int64_t row, int64_t ordinal) {
  const float* kernels = args.kernels + row * args.kernel_stride;
  const int64_t groups = args.cols / args.group_size;
  const int taps = static_cast<int>(ordinal + 1 < args.taps ? ordinal + 1 : args.taps);
  float* y = args.y + row * args.y_stride;
  for (int64_t c = 0; c < args.cols; c += 16) {
    vf sum = zero();
    for (int tap = 0; tap < taps; ++tap) {
      const float* dynamic = kernels + tap * groups;
      vf w;
      if (args.group_size % 16 == 0) {
        w = set1(dynamic[c / args.group_size]);
      } else {
        alignas(64) float spread[16];
        for (int i = 0; i < 16; ++i) spread[i] = c + i < args.cols ? dynamic[(c + i) / args.group_size] : 0.0f;
        w = load(spread);
      }
      sum = fma(add(load(args.base + tap * args.cols + c), w), load(args.x + (row - tap) * args.x_stride + c), sum);
    }
    store(y + c, args.accumulate ? add(load(y + c), sum) : sum);
  }
}

// A tail of fewer than 16 logits, the rest -inf.
inline vf load_tail(const float* x, int64_t count) {
  alignas(64) float padded[16];
  for (int64_t i = 0; i < 16; ++i) padded[i] = i < count ? x[i] : -__builtin_inff();
  return load(padded);
}

void rank(const RankArgs& args, int64_t row) {
  const float* x = args.logits + row * args.logit_stride;
  int32_t* ids = args.ids + row * args.out_stride;
  float* values = args.values + row * args.out_stride;
  float* probs = args.probs + row * args.out_stride;
  int found = 0;
  // Ids ascend, so of equals the lower one is already there and stays before.
  const auto insert = [&](int64_t id) {
    const float value = x[id] == x[id] ? x[id] : -__builtin_inff();
    if (found == args.top_k && !(value > values[found - 1])) return;
    int place = found < args.top_k ? found++ : found - 1;
    for (; place > 0 && value > values[place - 1]; --place) ids[place] = ids[place - 1], values[place] = values[place - 1];
    ids[place] = static_cast<int32_t>(id), values[place] = value;
  };
  for (int64_t i = 0; i < args.vocab; i += 16) {
    const int64_t count = args.vocab - i < 16 ? args.vocab - i : 16;
    const vf lanes = count == 16 ? load(x + i) : load_tail(x + i, count);
    // vmax(NaN, m) is m: a NaN is never a candidate before a number.
    if (found == args.top_k && !(fold_max(vmax(lanes, set1(-__builtin_inff()))) > values[found - 1])) continue;
    for (int64_t lane = 0; lane < count; ++lane) insert(i + lane);
  }
  const vf max = set1(values[0]);
  vf total = zero();
  int64_t i = 0;
  for (; i + 16 <= args.vocab; i += 16) total = add(total, vexp(sub(load(x + i), max)));
  if (i < args.vocab) total = add(total, vexp(sub(load_tail(x + i, args.vocab - i), max)));
  const float sum = fold(total);
  for (int first = 0; first < args.top_k; first += 16) {
    const int count = args.top_k - first < 16 ? args.top_k - first : 16;
    alignas(64) float of_best[16];
    store(of_best, div(vexp(sub(load_tail(values + first, count), max)), set1(sum)));
    std::memcpy(probs + first, of_best, static_cast<size_t>(count) * sizeof(float));
  }
}

float dot(const float* a, const float* b, int64_t n) {
  vf sum = zero();
  for (int64_t i = 0; i < n; i += 16) sum = fma(load(a + i), load(b + i), sum);
  return fold(sum);
}

}  // namespace blockdraft::BD_NS
