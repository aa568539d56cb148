// A recorded pass: a flat list of operations over fixed buffers, run with one call.
//
// ops/native.py records it once per model. Knows no tokenizer, sampling or scheduling; K/V pages belong to the caller.
// A buffer holds [rows of the pass][columns padded to 16] floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace blockdraft {

// One ragged pass; see ops/batch.py for the meaning. Arrays belong to the caller.
struct Batch {
  int64_t rows, sequences, logit_rows;
  const int32_t *token_ids, *positions, *parents, *row_starts, *base_lengths, *logit_row_ids;
  const uint64_t *full_pages, *window_pages;  // [sequences][full_stride], [sequences][window_stride]
  int64_t full_stride, window_stride;
};

struct RopeTable {
  std::vector<double> inverse_frequencies;
  float factor;
  bool interleaved;
  std::vector<float> cos, sin;  // of the pass: [rows][2 * frequencies]
};

struct AttendSpec {
  int q, k, v, out;  // buffers; of an operation that only stores, q and out are -1
  int layer;         // ordinal within its page class
  bool windowed_pages;
  int num_heads, num_kv_heads, head_dim;
  float scale, softcap;  // softcap 0: none
  int rope;              // table, -1: none
  int window;            // 0: all
  bool causal;
  std::vector<float> q_norm, k_norm;  // empty: none
  float norm_eps;
};

// A prepared input shared by several products.
struct ProjectSpec {
  int x, up = -1;  // up >= 0: x is a gate
  Gate gate = Gate::Silu;
  std::vector<float> norm;  // empty: none
  float eps = 0;
  struct Product {
    std::shared_ptr<Matrix> weight;
    int out;
    std::vector<float> bias;  // padded to 16, or empty
    bool accumulate;
  };
  std::vector<Product> products;
};

struct ConvolveSpec {
  int x, kernels, out;  // buffers; kernels: [2 sides][taps][groups]
  std::vector<float> base;  // [2 sides][taps][cols]
  int taps, side;
  int64_t group_size;
  bool accumulate;
};

// The best logits of each row.
struct RankSpec {
  int logits, ids, values, probs;  // buffers; ids holds int32
  int top_k;
  std::vector<int32_t> tokens;  // of the logits; empty: all tokens in order
};

// What each candidate scores after each candidate of the row before: its logit + sum(before * gate * after).
struct TransitionSpec {
  int gates, ids, values, scores;
  std::shared_ptr<Matrix> before, after;
  int top_k;
};

// What attention needs to know of a pass, worked out once.
struct PassLayout {
  std::vector<int32_t> sequence, slot;  // per row
  std::vector<uint8_t> chain;           // per sequence: every slot equals its position
  std::vector<std::vector<int32_t>> ancestors;  // per row of a tree: slots of its path in the pass, by depth
};

class AlignedFloats {
 public:
  explicit AlignedFloats(size_t count);
  float* data() const { return data_.get(); }

 private:
  struct Free { void operator()(float* p) const { std::free(p); } };
  std::unique_ptr<float, Free> data_;
};

class Plan {
 public:
  // Throws std::invalid_argument for a row limit outside 1..65536 or an instruction set this machine lacks.
  Plan(int64_t max_rows, const char* isa);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Recording; each returns or names buffers by number and throws std::invalid_argument on shapes that do not fit.
  int buffer(int64_t cols);
  int rope(std::vector<double> inverse_frequencies, float factor, bool interleaved);
  void embed(std::shared_ptr<Matrix> table, int out, float scale, int32_t mask_token = -1, std::vector<float> mask = {});
  void project(ProjectSpec spec);
  void attend(AttendSpec spec);
  void store(AttendSpec spec);  // keys and values only
  void norm(int x, std::vector<float> weight, float eps, int out);
  void convolve(ConvolveSpec spec);
  void rank(RankSpec spec);
  void transitions(TransitionSpec spec);
  void norm_add(int y, std::vector<float> weight, float eps, int h);
  void copy(int from, int to, int64_t column);  // columns of `from` into `to` at `column`
  void select(int from, int to);                // logit rows; what follows runs on those rows
  void scale_cap(int x, float scale, float softcap);

  // Runs the pass. Throws std::invalid_argument when the batch does not fit the plan (rows, token ids, pages).
  void run(Pool& pool, const Batch& batch);

  float* data(int buffer) const { return buffers_.at(buffer).floats->data(); }
  int64_t cols(int buffer) const { return buffers_.at(buffer).cols; }
  int64_t stride(int buffer) const { return buffers_.at(buffer).stride; }
  int64_t max_rows() const { return max_rows_; }
  const Kernels& kernels() const { return kernels_; }
  bool side_by_side() const { return side_by_side_; }
  void set_side_by_side(bool wanted) { side_by_side_ = wanted; }

 private:
  struct Buffer { int64_t cols, stride; std::unique_ptr<AlignedFloats> floats; };
  struct Pass { Pool& pool; const Batch& batch; int64_t rows; };

  void check(const Batch& batch) const;
  void lay_out(const Batch& batch);
  void fill_rope(Pool& pool, const Batch& batch);
  void check_attend(const AttendSpec& spec);
  void run_transitions(Pass& pass, const TransitionSpec& spec);
  template <class Row>
  void each_row(Pass& pass, const Row& row) {
    const int64_t per = std::max<int64_t>(1, pass.rows / (4 * pass.pool.num_threads()));
    pass.pool.run((pass.rows + per - 1) / per, [&](int64_t chunk, int) {
      for (int64_t r = chunk * per; r < std::min(pass.rows, (chunk + 1) * per); ++r) row(r);
    });
  }
  void run_project(Pass& pass, const ProjectSpec& spec);
  void run_attend(Pass& pass, const AttendSpec& spec);
  void attend_units(Pass& pass, const AttendSpec& spec);
  void store_heads(Pass& pass, const AttendSpec& spec);
  void need(int buffer, int64_t cols, const char* what) const;

  int64_t max_rows_, vocab_ = 0, full_layers_ = 0, windowed_layers_ = 0, max_window_ = 0;
  const Kernels& kernels_;
  bool side_by_side_ = reads_side_by_side();
  std::vector<Buffer> buffers_;
  std::vector<RopeTable> ropes_;
  std::vector<std::function<void(Pass&)>> ops_;
  PassLayout layout_;
  QuantizedRows quantized_;
  std::vector<float> prepared_;                   // float inputs of float matrices
  std::vector<std::vector<float>> attend_scratch_;  // per thread
  std::vector<std::vector<uint16_t>> gather_scratch_;
  std::vector<float> partial_out_;
  std::vector<Partial> partials_;
};

// Copies the K/V of slots base + rows[i] to base + i, ascending, in every layer and head of one page class.
void move_rows(const uint64_t* pages, int64_t num_pages, int layers, int kv_heads, int head_dim, int64_t base,
               const int32_t* rows, int64_t count);

constexpr int64_t head_page_halfs(int head_dim) { return 2 * kChunk * static_cast<int64_t>(head_dim); }

}  // namespace blockdraft
