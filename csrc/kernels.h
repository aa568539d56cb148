// What each instruction set path provides: one table of functions over the same argument structs.
//
// Knows no threads and no plans: every function computes the units it is given, on the calling thread.
// Bits: docs/numerics.md; the three tables are interchangeable.
#pragma once

#include <cstdint>
#include <vector>

#include "pack.h"
#include "sample.h"

namespace blockdraft {

inline constexpr int kRowBlock = 16;    // rows of activations that share one pass over a tile
inline constexpr int kChunk = 64;       // positions of an attention chunk, and of a K/V page
inline constexpr int kQueryBlock = 4;   // queries that share one pass over a chunk

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Activations of up to `rows` rows, quantized (numerics.md section 2). Rows lie in blocks of 16: element k of row m is at
// q[block * 16 * cols + (k / 32) * n * 32 + (m % 16) * 32 + k % 32], n the rows of that block; groups alike without the 32s.
struct QuantizedRows {
  struct Group {
    float scale, f, f0, f1;        // scale, and scale * sums
    int32_t n, n0, n1, reserved;   // negated sums: whole group and halves
  };
  int64_t rows = 0, cols = 0;
  std::vector<int8_t> q;
  std::vector<Group> groups;

  void reserve(int64_t max_rows, int64_t max_cols);
  int64_t block_rows(int64_t row) const {
    const int64_t rest = rows - row / kRowBlock * kRowBlock;
    return rest < kRowBlock ? rest : kRowBlock;
  }
  int64_t group_index(int64_t row, int64_t group) const {
    return row / kRowBlock * kRowBlock * (cols / 32) + group * block_rows(row) + row % kRowBlock;
  }
};

enum class Gate : int { Silu, GeluTanh };

// How a row of a projection's input comes about: as it is, normed, or gated.
struct PrepareArgs {
  const float* x;
  int64_t x_stride;
  const float* norm_weight;  // null: no norm
  float eps;
  const float* up;  // not null: x is the gate, input = gate(x) * up
  int64_t up_stride;
  Gate gate;
  int64_t cols;
  QuantizedRows* quantized;  // null: not wanted
  float* out;                // float copy, null: not wanted
  int64_t out_stride;
};

struct MatmulArgs {
  const Matrix* weight;
  const QuantizedRows* x;  // for quantized weights
  const float* x_float;    // for float weights
  int64_t x_stride;
  int64_t rows;
  float* y;
  int64_t y_stride;  // at least the weight's rows rounded up to 16
  const float* bias;  // null, or padded to 16
  bool accumulate;   // y += instead of y =
  bool side_by_side;  // few rows read several tiles at once, where the instruction set has registers for it
};

struct HeadArgs {
  float* heads;  // one row's heads, normed and rotated in place
  int num_heads, head_dim;
  const float* norm_weight;  // null: none
  float eps;
  const float* cos;  // of this position, rope_dims entries; null: no rotation
  const float* sin;  // alike, negated where the formula subtracts
  int rope_dims;     // a multiple of 16
  bool interleaved;
  float scale;
};

// One chunk of 64 positions against up to kQueryBlock queries.
struct ChunkArgs {
  const float* query[kQueryBlock];
  int low[kQueryBlock], high[kQueryBlock];  // visible positions in the chunk, [low, high), not empty
  int num_queries;
  const uint16_t* keys;    // [head_dim][64]
  const uint16_t* values;  // [64][head_dim]
  int head_dim;
  float softcap;  // 0: none
  bool first;                // of this chunk: ask for its values, and for what comes next
  const uint16_t* upcoming;  // keys of the next chunk, or null
};

struct Partial {  // of one query over some chunks
  float max, sum;
  float* out;  // head_dim
};

// Rows mixed with the rows before them in their block: a grouped causal convolution whose kernels are partly the rows' own.
struct ConvolveArgs {
  const float* x;
  int64_t x_stride;
  const float* kernels;  // of each row: [taps][cols / group_size]
  int64_t kernel_stride;
  const float* base;  // [taps][cols]
  int taps;
  int64_t group_size, cols;  // cols: a multiple of 16
  float* y;
  int64_t y_stride;
  bool accumulate;  // y += instead of y =
};

// The best logits of a row: by value, then by lower id.
struct RankArgs {
  const float* logits;
  int64_t logit_stride, vocab;
  int top_k;  // at most vocab
  int32_t* ids;   // [row][out_stride]
  float* values;  // the logits
  float* probs;   // softmax over all logits
  int64_t out_stride;
};

struct Kernels {
  const char* name;
  void (*prepare)(const PrepareArgs&, int64_t row, int64_t first_group, int64_t last_group);
  void (*matmul)(const MatmulArgs&, int64_t first_tile, int64_t last_tile);
  void (*heads)(const HeadArgs&);
  void (*store_kv)(const float* k, const float* v, int head_dim, int slot, uint16_t* keys, uint16_t* values);
  void (*attend_chunk)(const ChunkArgs&, Partial* partials);
  void (*merge)(Partial& into, const Partial& from, int head_dim);
  void (*finish)(const Partial&, int head_dim, float* out);
  void (*norm_add)(float* y, int64_t n, const float* weight, float eps, float* h);
  void (*scale_cap)(float* x, int64_t n, float scale, float softcap);
  void (*convolve)(const ConvolveArgs&, int64_t row, int64_t ordinal);  // ordinal: of the row in its sequence
  void (*rank)(const RankArgs&, int64_t row);
  float (*dot)(const float* a, const float* b, int64_t n);  // n: a multiple of 16
  ScanKernels scan;
};

extern const Kernels kScalarKernels, kAvx2Kernels, kAvx512Kernels;

// The paths this machine runs, fastest last.
std::vector<const Kernels*> available_kernels();
// The named path, or the fastest for nullptr; throws std::invalid_argument for what this machine lacks.
const Kernels& find_kernels(const char* name);

// Whether this processor reads memory faster in several streams than in one.
bool reads_side_by_side();

}  // namespace blockdraft
