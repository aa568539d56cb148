#include "plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "trig.h"

namespace blockdraft {

namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string str(int64_t value) { return std::to_string(value); }

// Bytes of weights that one claim of a chunk should stand for.
constexpr int64_t kChunkBytes = 24 * 1024;
constexpr int64_t kChunksPerThread = 12;

}  // namespace

AlignedFloats::AlignedFloats(size_t count) {
  const size_t bytes = static_cast<size_t>(round_up(static_cast<int64_t>(count * sizeof(float)), 64));
  data_.reset(static_cast<float*>(std::aligned_alloc(64, std::max<size_t>(bytes, 64))));
  if (!data_) throw std::bad_alloc();
}

Plan::Plan(int64_t max_rows, const char* isa) : max_rows_(max_rows), kernels_(find_kernels(isa)) {
  if (max_rows < 1 || max_rows > 65536) fail("a plan has 1 to 65536 rows, not " + str(max_rows));
}

void Plan::need(int buffer, int64_t cols, const char* what) const {
  if (buffer < 0 || buffer >= static_cast<int>(buffers_.size())) fail(std::string(what) + ": no buffer " + str(buffer));
  if (buffers_[buffer].cols != cols) {
    fail(std::string(what) + " has " + str(buffers_[buffer].cols) + " columns where " + str(cols) + " are needed");
  }
}

int Plan::buffer(int64_t cols) {
  if (cols < 1 || cols > (int64_t{1} << 32)) fail("a buffer of " + str(cols) + " columns");
  const int64_t stride = round_up(cols, 16);
  buffers_.push_back({cols, stride, std::make_unique<AlignedFloats>(static_cast<size_t>(max_rows_ * stride))});
  return static_cast<int>(buffers_.size()) - 1;
}

int Plan::rope(std::vector<double> inverse_frequencies, float factor, bool interleaved) {
  const int64_t dims = 2 * static_cast<int64_t>(inverse_frequencies.size());
  if (dims == 0 || dims % 16 != 0) fail("rotary dimensions " + str(dims) + " are no multiple of 16");
  ropes_.push_back({std::move(inverse_frequencies), factor, interleaved, {}, {}});
  return static_cast<int>(ropes_.size()) - 1;
}

void Plan::embed(std::shared_ptr<Matrix> table, int out, float scale, int32_t mask_token, std::vector<float> mask) {
  const int64_t cols = table->cols();
  need(out, cols, "embedding");
  if (!mask.empty() && static_cast<int64_t>(mask.size()) != cols) fail("the mask's embedding does not fit the table");
  vocab_ = table->rows();
  ops_.push_back([this, table, out, scale, cols, mask_token, mask = std::move(mask)](Pass& pass) {
    each_row(pass, [&](int64_t row) {
      float* to = data(out) + row * stride(out);
      const int32_t token = pass.batch.token_ids[row];
      if (!mask.empty() && token == mask_token) {
        std::copy(mask.begin(), mask.end(), to);
      } else {
        table->dequantize(token, 1, to);
      }
      if (scale != 1.0f) {
        for (int64_t i = 0; i < cols; ++i) to[i] *= scale;
      }
    });
  });
}

void Plan::project(ProjectSpec spec) {
  const int64_t cols = this->cols(spec.x);
  if (cols % kGroupCols != 0) fail("a projection's input has " + str(cols) + " columns, no multiple of 32");
  if (spec.up >= 0) need(spec.up, cols, "up projection");
  if (!spec.norm.empty() && static_cast<int64_t>(spec.norm.size()) != cols) fail("norm weight does not fit its input");
  for (auto& product : spec.products) {
    if (product.weight->cols() != cols) {
      fail("a matrix has " + str(product.weight->cols()) + " columns, its input " + str(cols));
    }
    need(product.out, product.weight->rows(), "a projection's output");
    if (!product.bias.empty()) {
      if (static_cast<int64_t>(product.bias.size()) != product.weight->rows()) fail("bias does not fit its matrix");
      product.bias.resize(static_cast<size_t>(round_up(product.weight->rows(), 16)));
    }
  }
  ops_.push_back([this, spec = std::move(spec)](Pass& pass) { run_project(pass, spec); });
}

void Plan::check_attend(const AttendSpec& spec) {
  if (spec.head_dim < 16 || spec.head_dim > 1024 || spec.head_dim % 16 != 0) {
    fail("head size " + str(spec.head_dim) + " is no multiple of 16 up to 1024");
  }
  if (spec.num_kv_heads < 1 || spec.num_heads % spec.num_kv_heads != 0) {
    fail(str(spec.num_heads) + " heads cannot share " + str(spec.num_kv_heads) + " key/value heads");
  }
  need(spec.k, static_cast<int64_t>(spec.num_kv_heads) * spec.head_dim, "keys");
  need(spec.v, static_cast<int64_t>(spec.num_kv_heads) * spec.head_dim, "values");
  for (const auto* norm : {&spec.q_norm, &spec.k_norm}) {
    if (!norm->empty() && static_cast<int>(norm->size()) != spec.head_dim) fail("head norm does not fit the head size");
  }
  if (spec.rope >= static_cast<int>(ropes_.size())) fail("no rotary table " + str(spec.rope));
  if (spec.rope >= 0 && 2 * static_cast<int>(ropes_[spec.rope].inverse_frequencies.size()) > spec.head_dim) {
    fail("more rotary dimensions than the head size " + str(spec.head_dim));
  }
  if (spec.windowed_pages) max_window_ = std::max<int64_t>(max_window_, spec.window);
  int64_t& layers = spec.windowed_pages ? windowed_layers_ : full_layers_;
  layers = std::max<int64_t>(layers, spec.layer + 1);
}

void Plan::attend(AttendSpec spec) {
  check_attend(spec);
  need(spec.q, static_cast<int64_t>(spec.num_heads) * spec.head_dim, "queries");
  need(spec.out, static_cast<int64_t>(spec.num_heads) * spec.head_dim, "attention output");
  ops_.push_back([this, spec = std::move(spec)](Pass& pass) { run_attend(pass, spec); });
}

void Plan::store(AttendSpec spec) {
  check_attend(spec);
  spec.q = spec.out = -1;
  ops_.push_back([this, spec = std::move(spec)](Pass& pass) { store_heads(pass, spec); });
}

void Plan::norm_add(int y, std::vector<float> weight, float eps, int h) {
  const int64_t n = static_cast<int64_t>(weight.size());
  need(y, n, "norm input");
  need(h, n, "residual");
  if (n % 16 != 0) fail("a norm over " + str(n) + " columns, no multiple of 16");
  ops_.push_back([this, y, h, n, eps, weight = std::move(weight)](Pass& pass) {
    each_row(pass, [&](int64_t row) {
      kernels_.norm_add(data(y) + row * stride(y), n, weight.data(), eps, data(h) + row * stride(h));
    });
  });
}

void Plan::copy(int from, int to, int64_t column) {
  if (column < 0 || column + cols(from) > cols(to)) fail("a copy of " + str(cols(from)) + " columns does not fit");
  ops_.push_back([this, from, to, column](Pass& pass) {
    for (int64_t row = 0; row < pass.rows; ++row) {
      std::memcpy(data(to) + row * stride(to) + column, data(from) + row * stride(from),
                  static_cast<size_t>(cols(from)) * sizeof(float));
    }
  });
}

void Plan::select(int from, int to) {
  need(to, cols(from), "selected rows");
  ops_.push_back([this, from, to](Pass& pass) {
    pass.rows = pass.batch.logit_rows;
    for (int64_t i = 0; i < pass.rows; ++i) {
      std::memcpy(data(to) + i * stride(to), data(from) + pass.batch.logit_row_ids[i] * stride(from),
                  static_cast<size_t>(cols(from)) * sizeof(float));
    }
  });
}

void Plan::scale_cap(int x, float scale, float softcap) {
  need(x, cols(x), "logits");
  ops_.push_back([this, x, scale, softcap](Pass& pass) {
    constexpr int64_t step = 4096;
    const int64_t per_row = (stride(x) + step - 1) / step;
    pass.pool.run(pass.rows * per_row, [&](int64_t chunk, int) {
      const int64_t first = chunk % per_row * step;
      kernels_.scale_cap(data(x) + chunk / per_row * stride(x) + first, std::min(step, stride(x) - first), scale, softcap);
    });
  });
}

void Plan::check(const Batch& batch) const {
  if (batch.rows < 1 || batch.rows > max_rows_) fail("a pass of " + str(batch.rows) + " rows; the plan holds " + str(max_rows_));
  if (batch.row_starts[0] != 0 || batch.row_starts[batch.sequences] != batch.rows) fail("row_starts do not cover the rows");
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t first = batch.row_starts[s], last = batch.row_starts[s + 1], base = batch.base_lengths[s];
    if (last <= first || base < 0) fail("sequence " + str(s) + " of the pass has no rows or a negative length");
    const int64_t pages = (base + last - first + kChunk - 1) / kChunk;
    const auto missing = [&](const uint64_t* table, int64_t stride, int64_t from) {
      for (int64_t p = from; p < pages; ++p)
        if (p >= stride || table[s * stride + p] == 0) return true;
      return false;
    };
    if (full_layers_ > 0 && missing(batch.full_pages, batch.full_stride, 0)) fail("a K/V page of sequence " + str(s) + " is missing");
    if (windowed_layers_ > 0 && missing(batch.window_pages, batch.window_stride, std::max<int64_t>(0, base - max_window_ + 1) / kChunk)) {
      fail("a windowed K/V page of sequence " + str(s) + " is missing");
    }
    for (int64_t row = first; row < last; ++row) {
      if (vocab_ > 0 && (batch.token_ids[row] < 0 || batch.token_ids[row] >= vocab_)) {
        fail("token id " + str(batch.token_ids[row]) + " is outside the vocabulary of " + str(vocab_));
      }
      const int64_t parent = batch.parents[row];
      if (parent < -1 || (parent >= 0 && (parent < first || parent >= row))) fail("a row's parent must come before it");
      const int64_t expected = parent < 0 ? base : batch.positions[parent] + int64_t{1};
      if (batch.positions[row] != expected) {
        fail("row " + str(row) + " stands at position " + str(batch.positions[row]) + "; its parent puts it at " + str(expected));
      }
    }
  }
  for (int64_t i = 0; i < batch.logit_rows; ++i) {
    if (batch.logit_row_ids[i] < 0 || batch.logit_row_ids[i] >= batch.rows) fail("a logit row is outside the pass");
  }
  if (batch.logit_rows > max_rows_) fail("more logit rows than the plan holds");
}

void Plan::lay_out(const Batch& batch) {
  layout_.sequence.resize(batch.rows);
  layout_.slot.resize(batch.rows);
  layout_.ancestors.assign(batch.rows, {});
  layout_.chain.assign(batch.sequences, 1);
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int32_t first = batch.row_starts[s], last = batch.row_starts[s + 1];
    for (int32_t row = first; row < last; ++row) {
      layout_.sequence[row] = static_cast<int32_t>(s);
      layout_.slot[row] = batch.base_lengths[s] + row - first;
      if (layout_.slot[row] != batch.positions[row]) layout_.chain[s] = 0;
    }
    if (layout_.chain[s]) continue;
    for (int32_t row = first; row < last; ++row) {
      if (batch.parents[row] >= 0) layout_.ancestors[row] = layout_.ancestors[batch.parents[row]];
      layout_.ancestors[row].push_back(layout_.slot[row]);
    }
  }
}

void Plan::fill_rope(Pool& pool, const Batch& batch) {
  for (RopeTable& table : ropes_) {
    const int64_t half = static_cast<int64_t>(table.inverse_frequencies.size()), dims = 2 * half;
    table.cos.resize(static_cast<size_t>(batch.rows * dims));
    table.sin.resize(static_cast<size_t>(batch.rows * dims));
    const int64_t per = 4;
    pool.run((batch.rows + per - 1) / per, [&](int64_t chunk, int) {
      for (int64_t row = chunk * per; row < std::min(batch.rows, (chunk + 1) * per); ++row) {
        for (int64_t i = 0; i < half; ++i) {
          const auto [c, s] = cos_sin(batch.positions[row] * table.inverse_frequencies[i]);
          const float cos = static_cast<float>(c * table.factor), sin = static_cast<float>(s * table.factor);
          const int64_t a = row * dims + (table.interleaved ? 2 * i : i), b = table.interleaved ? a + 1 : a + half;
          table.cos[a] = table.cos[b] = cos;
          table.sin[a] = -sin;
          table.sin[b] = sin;
        }
      }
    });
  }
}

void Plan::run_project(Pass& pass, const ProjectSpec& spec) {
  const int64_t cols = this->cols(spec.x), groups = cols / kGroupCols, threads = pass.pool.num_threads();
  bool quantized = false, floats = false;
  for (const auto& product : spec.products) (product.weight->format().is_float() ? floats : quantized) = true;
  const bool as_is = spec.norm.empty() && spec.up < 0;
  PrepareArgs prepare{data(spec.x), stride(spec.x), spec.norm.empty() ? nullptr : spec.norm.data(), spec.eps,
                      spec.up < 0 ? nullptr : data(spec.up), spec.up < 0 ? 0 : stride(spec.up), spec.gate, cols,
                      nullptr, nullptr, cols};
  if (quantized) {
    quantized_.rows = pass.rows, quantized_.cols = cols;
    quantized_.reserve(pass.rows, cols);
    prepare.quantized = &quantized_;
  }
  if (floats && !as_is) {
    prepared_.resize(std::max(prepared_.size(), static_cast<size_t>(pass.rows * cols)));
    prepare.out = prepared_.data();
  }
  if (prepare.quantized || prepare.out) {
    // Few wide gated rows are cut by columns, everything else by rows.
    if (spec.up >= 0 && pass.rows < threads && groups >= 64) {
      const int64_t parts = 2 * threads;
      pass.pool.run(pass.rows * parts, [&](int64_t chunk, int) {
        const int64_t part = chunk % parts;
        kernels_.prepare(prepare, chunk / parts, groups * part / parts, groups * (part + 1) / parts);
      });
    } else {
      each_row(pass, [&](int64_t row) { kernels_.prepare(prepare, row, 0, groups); });
    }
  }
  // All products of the input are one job.
  struct Piece { const ProjectSpec::Product* product; int64_t first, last; };
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  int64_t bytes = 0;
  for (const auto& product : spec.products) bytes += static_cast<int64_t>(product.weight->nbytes());
  const int64_t piece_bytes = threads == 1 ? bytes : std::max(kChunkBytes, bytes / (threads * kChunksPerThread));
  for (const auto& product : spec.products) {
    const int64_t tiles = product.weight->tiles();
    // Whole multiples of the tiles that a kernel reads side by side.
    const int64_t step = round_up(std::max<int64_t>(1, piece_bytes / static_cast<int64_t>(product.weight->tile_bytes())), 4);
    for (int64_t tile = 0; tile < tiles; tile += step) pieces.push_back({&product, tile, std::min(tiles, tile + step)});
  }
  const auto& work = pieces;
  pass.pool.run(static_cast<int64_t>(work.size()), [&](int64_t chunk, int) {
    const auto& [product, first, last] = work[chunk];
    kernels_.matmul({product->weight.get(), &quantized_, as_is ? data(spec.x) : prepared_.data(),
                     as_is ? stride(spec.x) : cols, pass.rows, data(product->out), stride(product->out),
                     product->bias.empty() ? nullptr : product->bias.data(), product->accumulate,
                     side_by_side_},
                    first, last);
  });
}

void Plan::run(Pool& pool, const Batch& batch) {
  const std::lock_guard lock(pool.mutex());
  check(batch);
  lay_out(batch);
  fill_rope(pool, batch);
  Pass pass{pool, batch, batch.rows};
  for (const auto& op : ops_) {
    op(pass);
    if (pass.rows == 0) break;
  }
}

}  // namespace blockdraft
