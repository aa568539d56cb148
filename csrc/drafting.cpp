// Operations of a plan that only a drafter records: norms on their own, convolutions, candidates and their transitions.
#include <cstring>
#include <stdexcept>
#include <string>

#include "plan.h"

namespace blockdraft {

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string str(int64_t value) { return std::to_string(value); }

}  // namespace

void Plan::norm(int x, std::vector<float> weight, float eps, int out) {
  const int64_t n = static_cast<int64_t>(weight.size());
  need(x, n, "norm input");
  need(out, n, "norm output");
  if (n % kGroupCols != 0) fail("a norm over " + str(n) + " columns, no multiple of 32");
  ops_.push_back([this, x, out, n, eps, weight = std::move(weight)](Pass& pass) {
    const PrepareArgs args{data(x), stride(x), weight.data(), eps, nullptr, 0, Gate::Silu, n, nullptr, data(out), stride(out)};
    each_row(pass, [&](int64_t row) { kernels_.prepare(args, row, 0, n / kGroupCols); });
  });
}

void Plan::convolve(ConvolveSpec spec) {
  const int64_t cols = this->cols(spec.x);
  need(spec.out, cols, "convolution output");
  if (cols % 16 != 0) fail("a convolution over " + str(cols) + " columns, no multiple of 16");
  if (spec.taps < 1 || spec.side < 0 || spec.side > 1) fail("a convolution of " + str(spec.taps) + " taps on side " + str(spec.side));
  if (spec.group_size < 1 || cols % spec.group_size != 0) fail(str(cols) + " columns have no groups of " + str(spec.group_size));
  need(spec.kernels, 2 * spec.taps * (cols / spec.group_size), "convolution kernels");
  if (static_cast<int64_t>(spec.base.size()) != 2 * spec.taps * cols) {
    fail("base kernels have " + str(static_cast<int64_t>(spec.base.size())) + " values, not " + str(2 * spec.taps * cols));
  }
  ops_.push_back([this, cols, spec = std::move(spec)](Pass& pass) {
    const int64_t of_side = spec.side * spec.taps;
    const ConvolveArgs args{data(spec.x), stride(spec.x),
                            data(spec.kernels) + of_side * (cols / spec.group_size), stride(spec.kernels),
                            spec.base.data() + of_side * cols, spec.taps, spec.group_size, cols,
                            data(spec.out), stride(spec.out), spec.accumulate};
    each_row(pass, [&](int64_t row) {
      kernels_.convolve(args, row, layout_.slot[row] - pass.batch.base_lengths[layout_.sequence[row]]);
    });
  });
}

void Plan::rank(RankSpec spec) {
  for (const int buffer : {spec.ids, spec.values, spec.probs}) need(buffer, spec.top_k, "candidates");
  if (spec.top_k < 1 || spec.top_k > cols(spec.logits)) {
    fail(str(spec.top_k) + " candidates of " + str(cols(spec.logits)) + " logits");
  }
  if (!spec.tokens.empty() && static_cast<int64_t>(spec.tokens.size()) != cols(spec.logits)) {
    fail(str(static_cast<int64_t>(spec.tokens.size())) + " tokens for " + str(cols(spec.logits)) + " logits");
  }
  for (const int32_t token : spec.tokens) {
    if (token < 0 || token >= vocab_) fail("token " + str(token) + " of a head is outside the vocabulary of " + str(vocab_));
  }
  ops_.push_back([this, spec = std::move(spec)](Pass& pass) {
    const RankArgs args{data(spec.logits), stride(spec.logits), cols(spec.logits), spec.top_k,
                        reinterpret_cast<int32_t*>(data(spec.ids)), data(spec.values), data(spec.probs), stride(spec.ids)};
    each_row(pass, [&](int64_t row) {
      kernels_.rank(args, row);
      if (spec.tokens.empty()) return;
      int32_t* ids = args.ids + row * args.out_stride;
      for (int i = 0; i < spec.top_k; ++i) ids[i] = spec.tokens[ids[i]];
    });
  });
}

void Plan::transitions(TransitionSpec spec) {
  const int64_t rank = spec.before->cols(), vocab = spec.before->rows();
  need(spec.gates, rank, "selector gates");
  need(spec.ids, spec.top_k, "candidates");
  need(spec.values, spec.top_k, "candidates");
  need(spec.scores, static_cast<int64_t>(spec.top_k) * spec.top_k, "transition scores");
  if (spec.after->cols() != rank || spec.after->rows() != vocab) {
    fail("selector tables are " + str(vocab) + " x " + str(rank) + " and " + str(spec.after->rows()) + " x " +
         str(spec.after->cols()));
  }
  if (vocab != vocab_) fail("a selector of " + str(vocab) + " tokens in a plan of " + str(vocab_));
  ops_.push_back([this, spec = std::move(spec)](Pass& pass) { run_transitions(pass, spec); });
}

void Plan::run_transitions(Pass& pass, const TransitionSpec& spec) {
  const int64_t rank = spec.before->cols(), padded = round_up(rank, 16);
  const int k = spec.top_k;
  const auto ids_of = [&](int64_t row) { return reinterpret_cast<const int32_t*>(data(spec.ids) + row * stride(spec.ids)); };
  for (int64_t i = 0; i < pass.rows; ++i) {
    const int32_t row = pass.batch.logit_row_ids[i];
    if (row == pass.batch.row_starts[layout_.sequence[row]]) fail("the first row of a block has no predecessor to select by");
  }
  each_row(pass, [&](int64_t i) {
    std::vector<float> gate(padded), before(padded), after(static_cast<size_t>(k * padded));
    std::memcpy(gate.data(), data(spec.gates) + i * stride(spec.gates), static_cast<size_t>(rank) * sizeof(float));
    for (int j = 0; j < k; ++j) spec.after->dequantize(ids_of(i)[j], 1, after.data() + j * padded);
    const int32_t row = pass.batch.logit_row_ids[i];
    // Where the row before has no logits its token is the one predecessor, in every line.
    const bool follows = i > 0 && pass.batch.logit_row_ids[i - 1] == row - 1;
    const float* logits = data(spec.values) + i * stride(spec.values);
    float* scores = data(spec.scores) + i * stride(spec.scores);
    for (int a = 0; a < k; ++a) {
      if (a > 0 && !follows) {
        std::memcpy(scores + a * k, scores, static_cast<size_t>(k) * sizeof(float));
        continue;
      }
      spec.before->dequantize(follows ? ids_of(i - 1)[a] : pass.batch.token_ids[row - 1], 1, before.data());
      for (int64_t r = 0; r < rank; ++r) before[r] *= gate[r];
      for (int j = 0; j < k; ++j) scores[a * k + j] = logits[j] + kernels_.dot(before.data(), after.data() + j * padded, padded);
    }
  });
}

}  // namespace blockdraft
