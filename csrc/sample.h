// Picks one token from a row of logits (docs/numerics.md section 7).
//
// Knows no batches, threads or text. The token is
//   argmax over survivors of (logit - max) / temperature + noise(seed, choice, position, id),
// ties to the lowest id; temperature 0 is the plain arg-max. Survivors come about in llama.cpp's order: bias and
// penalties, (allowed ids), top-k, top-p, min-p. In the order "larger logit first, then lower id" each of the three
// truncations keeps a prefix, so together they are one cut. NaN counts as -inf; when nothing is above -inf the lowest
// allowed id is taken; +inf beats all that is finite, whatever the noise.
//
// A row is seen in blocks of 64 ids. The loops that touch all of a row or weigh a block are in sample_scan.inl, one
// table per instruction set. What decides a token is integer arithmetic or binary64 `+ - * /` that no path may
// contract (-ffp-contract=off), so a token is the same everywhere. No libm on that way.
//
// Python (sample_bind.cpp):
//   SamplerParams(temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, seed)
//   sample(logits: float32[rows, vocab], params, choices, positions, penalty_tokens, biases, isa, masks=None)
//     -> list[int]
//   gumbel(seed, choice, position, token_id) -> float
#pragma once

#include <cstdint>
#include <vector>

namespace blockdraft {

inline constexpr int kScanBlock = 64;             // ids of a block
inline constexpr int64_t kMaxVocab = 1 << 22;     // top-p sums weights of 2^-40 in 64 bits
inline constexpr int kMassBuckets = 512;          // of width 1/16 nat below the maximum
inline constexpr float kBucketsPerNat = 16.0f;

struct SamplerParams {
  double temperature = 0.8;
  int32_t top_k = 40;  // 0: all
  double top_p = 0.95;
  double min_p = 0.05;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
};

struct SampleRow {
  const float* logits;  // never written
  int64_t vocab;        // 1 .. kMaxVocab
  const SamplerParams* params;
  uint32_t choice;   // which of several answers to one prompt
  int64_t position;  // absolute, of the token being picked
  const int32_t* penalty_tokens;  // the last repeat_last_n tokens, any order
  int64_t num_penalty_tokens;
  const int32_t* bias_ids;  // repeated ids add up
  const float* bias_values;
  int64_t num_bias;
  const uint32_t* allowed_mask;  // bit id % 32 of word id / 32; null: every id is allowed
};

// The noise of one id (sample_noise.h).
double gumbel(uint64_t seed, uint32_t choice, int64_t position, uint32_t id);

struct ScanKernels {
  // maxima[b] of full blocks; NaN is ignored, a block of NaN gives -inf.
  void (*block_max)(const float* logits, int64_t num_blocks, float* maxima);
  // scale[b] = exp((maxima[b] - max) / temperature), at least the true value; a bound, never part of a score.
  void (*block_scale)(const float* maxima, int64_t num_blocks, float max, double temperature, double* scale);
  // Of one block: weight = rne(exp(logit - max) * 2^40), bucket = (max - logit) * 16, at most 511.
  void (*weigh)(const float* block, float max, uint64_t* weight, int32_t* bucket);
};

// Buffers reused from row to row.
struct SampleScratch {
  struct Candidate {
    float logit;
    int32_t id;
    uint64_t weight;
  };
  std::vector<float> masked, maxima, group_maxima, patches;
  std::vector<int64_t> patched_blocks;  // ascending; patches[64 * i] is the content of the i-th
  std::vector<double> scale;
  std::vector<Candidate> candidates;
  std::vector<int32_t> touched, recent;
  std::vector<float> values;
};

// The token of one row. Throws std::invalid_argument for a mask that allows nothing.
int32_t sample(const SampleRow& row, const ScanKernels& kernels, SampleScratch& scratch);

}  // namespace blockdraft
