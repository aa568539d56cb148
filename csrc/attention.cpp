// Cuts attention into units of work: (sequence, block of rows, key/value head, run of chunks).
//
// With enough units each runs over all its chunks; with few, runs of chunks become units of their own and a second job
// merges what they found. Both merge chunk by chunk in ascending order, so the bits do not depend on the choice.
#include <algorithm>
#include <cstring>

#include "plan.h"

namespace blockdraft {

namespace {

constexpr int kUnitQueries = 48;   // rows x grouped heads of a unit
constexpr int64_t kSplitChunks = 4;  // chunks of a unit when chunks are split

struct Unit {
  int32_t sequence, first_row, num_rows, kv_head;
  int64_t first_chunk, last_chunk;
  int64_t partials;  // index of the first of its partial results, when split
};

struct View {  // of one row: visible positions
  int64_t low, high;
};

// The K/V of one key/value head, wherever a row finds them.
struct HeadPages {
  const AttendSpec& spec;
  const Batch& batch;
  const PassLayout& layout;
  int32_t kv_head;

  uint16_t* page(int64_t sequence, int64_t index) const {
    const uint64_t base = spec.windowed_pages ? batch.window_pages[sequence * batch.window_stride + index]
                                              : batch.full_pages[sequence * batch.full_stride + index];
    return reinterpret_cast<uint16_t*>(base) +
           (static_cast<int64_t>(spec.layer) * spec.num_kv_heads + kv_head) * head_page_halfs(spec.head_dim);
  }

  View view(int64_t row) const {
    const int64_t sequence = layout.sequence[row], position = batch.positions[row];
    const int64_t rows = batch.row_starts[sequence + 1] - batch.row_starts[sequence];
    const int64_t high = spec.causal ? position + 1 : batch.base_lengths[sequence] + rows;
    return {spec.window > 0 ? std::max<int64_t>(0, position - spec.window + 1) : 0, high};
  }

  // Keys of a chunk as `row` sees them; a tree row's own path is gathered into `scratch`.
  const uint16_t* chunk(int64_t row, int64_t index, uint16_t* scratch) const {
    const int64_t sequence = layout.sequence[row], base = batch.base_lengths[sequence], head_dim = spec.head_dim;
    const uint16_t* stored = page(sequence, index);
    if (layout.chain[sequence] || (index + 1) * kChunk <= base) return stored;
    uint16_t *keys = scratch, *values = scratch + kChunk * head_dim;
    std::memset(scratch, 0, static_cast<size_t>(head_page_halfs(spec.head_dim)) * 2);
    const auto& path = layout.ancestors[row];
    const int64_t end = std::min<int64_t>((index + 1) * kChunk, base + static_cast<int64_t>(path.size()));
    for (int64_t position = index * kChunk; position < end; ++position) {
      const int64_t slot = position < base ? position : path[position - base];
      const uint16_t* from = page(sequence, slot / kChunk);
      const int64_t s = slot % kChunk, p = position % kChunk;
      for (int64_t d = 0; d < head_dim; ++d) keys[d * kChunk + p] = from[d * kChunk + s];
      std::memcpy(values + p * head_dim, from + kChunk * head_dim + s * head_dim, static_cast<size_t>(head_dim) * 2);
    }
    return scratch;
  }
};

}  // namespace

void Plan::store_heads(Pass& pass, const AttendSpec& spec) {
  const auto one_row = [&](int64_t row) {
    const float* cos = nullptr;
    const float* sin = nullptr;
    int dims = 0;
    bool interleaved = false;
    if (spec.rope >= 0) {
      const RopeTable& table = ropes_[spec.rope];
      dims = 2 * static_cast<int>(table.inverse_frequencies.size());
      interleaved = table.interleaved;
      cos = table.cos.data() + row * dims;
      sin = table.sin.data() + row * dims;
    }
    const auto norm = [](const std::vector<float>& weight) { return weight.empty() ? nullptr : weight.data(); };
    float* k = data(spec.k) + row * stride(spec.k);
    const float* v = data(spec.v) + row * stride(spec.v);
    if (spec.q >= 0) {
      kernels_.heads({data(spec.q) + row * stride(spec.q), spec.num_heads, spec.head_dim, norm(spec.q_norm), spec.norm_eps,
                      cos, sin, dims, interleaved, spec.scale});
    }
    kernels_.heads({k, spec.num_kv_heads, spec.head_dim, norm(spec.k_norm), spec.norm_eps, cos, sin, dims, interleaved, 1.0f});
    const int64_t slot = layout_.slot[row];
    for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
      uint16_t* keys = HeadPages{spec, pass.batch, layout_, h}.page(layout_.sequence[row], slot / kChunk);
      kernels_.store_kv(k + h * spec.head_dim, v + h * spec.head_dim, spec.head_dim, static_cast<int>(slot % kChunk), keys,
                        keys + kChunk * spec.head_dim);
    }
  };
  each_row(pass, one_row);
}

void Plan::attend_units(Pass& pass, const AttendSpec& spec) {
  const Batch& batch = pass.batch;
  const int head_dim = spec.head_dim, group = spec.num_heads / spec.num_kv_heads, threads = pass.pool.num_threads();
  const int64_t block = std::max(1, kUnitQueries / group);
  std::vector<Unit> units;
  int64_t most_chunks = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int64_t rows = layout_.chain[s] ? block : 1;
    for (int32_t row = batch.row_starts[s]; row < batch.row_starts[s + 1]; row += static_cast<int32_t>(rows)) {
      const int32_t count = static_cast<int32_t>(std::min<int64_t>(rows, batch.row_starts[s + 1] - row));
      const HeadPages pages{spec, batch, layout_, 0};
      const int64_t first = pages.view(row).low / kChunk;
      const int64_t last = (pages.view(row + count - 1).high + kChunk - 1) / kChunk;
      most_chunks = std::max(most_chunks, last - first);
      for (int32_t h = 0; h < spec.num_kv_heads; ++h) units.push_back({s, row, count, h, first, last, 0});
    }
  }
  const int64_t whole = static_cast<int64_t>(units.size());
  const bool split = threads > 1 && whole < 4 * threads && most_chunks > kSplitChunks;
  std::vector<Unit> pieces;
  int64_t num_partials = 0;
  if (split) {
    for (Unit& unit : units) {
      unit.partials = num_partials;
      const int64_t queries = static_cast<int64_t>(unit.num_rows) * group;
      for (int64_t c = unit.first_chunk; c < unit.last_chunk; c += kSplitChunks) {
        Unit piece = unit;
        piece.first_chunk = c, piece.last_chunk = std::min(unit.last_chunk, c + kSplitChunks);
        piece.partials = num_partials + (c - unit.first_chunk) * queries;
        pieces.push_back(piece);
      }
      num_partials += (unit.last_chunk - unit.first_chunk) * queries;
    }
    partials_.resize(std::max(partials_.size(), static_cast<size_t>(num_partials)));
    partial_out_.resize(std::max(partial_out_.size(), static_cast<size_t>(num_partials * head_dim)));
  }

  const auto query = [&](const Unit& unit, int64_t i) {
    return data(spec.q) + (unit.first_row + i / group) * stride(spec.q) + (unit.kv_head * group + i % group) * head_dim;
  };
  const auto result = [&](const Unit& unit, int64_t i) {
    return data(spec.out) + (unit.first_row + i / group) * stride(spec.out) + (unit.kv_head * group + i % group) * head_dim;
  };
  // Runs `take(query, partial)` for each query of a unit that sees something in chunk c.
  const auto each_partial = [&](const Unit& unit, int64_t c, float* out, uint16_t* gather, const auto& take) {
    const HeadPages pages{spec, batch, layout_, unit.kv_head};
    const int64_t queries = static_cast<int64_t>(unit.num_rows) * group;
    const uint16_t* keys = pages.chunk(unit.first_row, c, gather);
    ChunkArgs args{};
    args.keys = keys, args.values = keys + kChunk * head_dim;
    args.head_dim = head_dim, args.softcap = spec.softcap;
    args.first = true;
    args.upcoming = c + 1 < unit.last_chunk ? pages.page(unit.sequence, c + 1) : nullptr;
    Partial partials[kQueryBlock];
    int64_t ids[kQueryBlock];
    const auto flush = [&] {
      if (args.num_queries == 0) return;
      for (int i = 0; i < args.num_queries; ++i) partials[i].out = out + i * head_dim;
      kernels_.attend_chunk(args, partials);
      for (int i = 0; i < args.num_queries; ++i) take(ids[i], partials[i]);
      args.num_queries = 0;
      args.first = false;
    };
    for (int64_t i = 0; i < queries; ++i) {
      const View view = pages.view(unit.first_row + i / group);
      const int64_t low = std::max<int64_t>(0, view.low - c * kChunk), high = std::min<int64_t>(kChunk, view.high - c * kChunk);
      if (low >= high) continue;
      const int n = args.num_queries++;
      args.query[n] = query(unit, i);
      args.low[n] = static_cast<int>(low), args.high[n] = static_cast<int>(high);
      ids[n] = i;
      if (args.num_queries == kQueryBlock) flush();
    }
    flush();
  };

  const size_t floats = static_cast<size_t>(kUnitQueries + group + kQueryBlock) * head_dim;
  attend_scratch_.resize(std::max<size_t>(attend_scratch_.size(), threads));
  gather_scratch_.resize(attend_scratch_.size());
  for (auto& v : attend_scratch_) v.resize(std::max(v.size(), floats));
  for (auto& v : gather_scratch_) v.resize(std::max(v.size(), static_cast<size_t>(head_page_halfs(head_dim))));

  if (!split) {
    pass.pool.run(whole, [&](int64_t index, int thread) {
      const Unit& unit = units[index];
      const int64_t queries = static_cast<int64_t>(unit.num_rows) * group;
      float* out = attend_scratch_[thread].data();
      Partial running[kUnitQueries + 1024];
      bool started[kUnitQueries + 1024] = {};
      for (int64_t i = 0; i < queries; ++i) running[i].out = out + (kQueryBlock + i) * head_dim;
      for (int64_t c = unit.first_chunk; c < unit.last_chunk; ++c) {
        each_partial(unit, c, out, gather_scratch_[thread].data(), [&](int64_t i, const Partial& partial) {
          if (started[i]) return kernels_.merge(running[i], partial, head_dim);
          started[i] = true;
          running[i].max = partial.max, running[i].sum = partial.sum;
          std::memcpy(running[i].out, partial.out, static_cast<size_t>(head_dim) * sizeof(float));
        });
      }
      for (int64_t i = 0; i < queries; ++i) kernels_.finish(running[i], head_dim, result(unit, i));
    });
    return;
  }

  // A chunk that a query does not see leaves a sum of -1.
  pass.pool.run(static_cast<int64_t>(pieces.size()), [&](int64_t index, int thread) {
    const Unit& piece = pieces[index];
    const int64_t queries = static_cast<int64_t>(piece.num_rows) * group;
    for (int64_t c = piece.first_chunk; c < piece.last_chunk; ++c) {
      const int64_t at = piece.partials + (c - piece.first_chunk) * queries;
      for (int64_t i = 0; i < queries; ++i) partials_[at + i].sum = -1.0f;
      each_partial(piece, c, attend_scratch_[thread].data(), gather_scratch_[thread].data(),
                   [&](int64_t i, const Partial& partial) {
                     Partial& to = partials_[at + i];
                     to = {partial.max, partial.sum, partial_out_.data() + (at + i) * head_dim};
                     std::memcpy(to.out, partial.out, static_cast<size_t>(head_dim) * sizeof(float));
                   });
    }
  });
  pass.pool.run(whole, [&](int64_t index, int) {
    const Unit& unit = units[index];
    const int64_t queries = static_cast<int64_t>(unit.num_rows) * group;
    for (int64_t i = 0; i < queries; ++i) {
      Partial* running = nullptr;
      for (int64_t c = unit.first_chunk; c < unit.last_chunk; ++c) {
        Partial& partial = partials_[unit.partials + (c - unit.first_chunk) * queries + i];
        if (partial.sum == -1.0f) continue;
        if (running) kernels_.merge(*running, partial, head_dim);
        else running = &partial;
      }
      kernels_.finish(*running, head_dim, result(unit, i));
    }
  });
}

void Plan::run_attend(Pass& pass, const AttendSpec& spec) {
  store_heads(pass, spec);
  attend_units(pass, spec);
}

void move_rows(const uint64_t* pages, int64_t num_pages, int layers, int kv_heads, int head_dim, int64_t base,
               const int32_t* rows, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = base + rows[i], to = base + i;
    if (from == to) continue;
    if (from / kChunk >= num_pages || pages[from / kChunk] == 0 || pages[to / kChunk] == 0) {
      throw std::invalid_argument("move_rows: a page is missing");
    }
    for (int64_t head = 0; head < static_cast<int64_t>(layers) * kv_heads; ++head) {
      const auto at = [&](int64_t slot) { return reinterpret_cast<uint16_t*>(pages[slot / kChunk]) + head * head_page_halfs(head_dim); };
      const uint16_t* source = at(from);
      uint16_t* target = at(to);
      for (int64_t d = 0; d < head_dim; ++d) target[d * kChunk + to % kChunk] = source[d * kChunk + from % kChunk];
      const int64_t values = kChunk * static_cast<int64_t>(head_dim);
      std::memcpy(target + values + to % kChunk * head_dim, source + values + from % kChunk * head_dim,
                  static_cast<size_t>(head_dim) * 2);
    }
  }
}

}  // namespace blockdraft
