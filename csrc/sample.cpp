#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "sample_noise.h"

namespace blockdraft {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Survivors: ids with a larger logit than `logit`, and of those with the same logit the ids up to `id`.
struct Cut {
  float logit = -kInf;
  int32_t id = std::numeric_limits<int32_t>::max();

  bool keeps(float x, int32_t i) const { return x > logit || (x == logit && i <= id); }
};

using Candidate = SampleScratch::Candidate;

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

bool is_allowed(const uint32_t* mask, int64_t id) { return !mask || (mask[id / 32] >> (id % 32) & 1) != 0; }

// A row's logits after bias, penalties and mask, block by block, without touching the caller's.
class View {
 public:
  View(const SampleRow& row, const ScanKernels& kernels, SampleScratch& scratch)
      : row_(row), scratch_(scratch), base_(row.logits), num_blocks_((row.vocab + kScanBlock - 1) / kScanBlock) {
    if (row.allowed_mask) apply_mask();
    adjust();
    patch();
    scratch.maxima.assign((num_blocks_ + 7) / 8 * 8, -kInf);
    kernels.block_max(base_, row.vocab / kScanBlock, scratch.maxima.data());
    for (size_t i = 0; i < scratch.patched_blocks.size(); ++i)
      kernels.block_max(&scratch.patches[i * kScanBlock], 1, &scratch.maxima[scratch.patched_blocks[i]]);
    max_ = *std::max_element(scratch.maxima.begin(), scratch.maxima.end());
  }

  int64_t num_blocks() const { return num_blocks_; }
  const std::vector<float>& maxima() const { return scratch_.maxima; }
  float max() const { return max_; }

  // 64 logits; past the end of the vocabulary -inf.
  const float* block(int64_t b) const {
    const auto& patched = scratch_.patched_blocks;
    const auto at = std::lower_bound(patched.begin(), patched.end(), b);
    if (at != patched.end() && *at == b) return &scratch_.patches[(at - patched.begin()) * kScanBlock];
    return base_ + b * kScanBlock;
  }

  int32_t argmax() const {
    if (max_ == -kInf) return lowest_allowed();
    const auto at = std::find(scratch_.maxima.begin(), scratch_.maxima.end(), max_);
    const int64_t b = at - scratch_.maxima.begin();
    const float* x = block(b);
    return static_cast<int32_t>(b * kScanBlock + (std::find(x, x + kScanBlock, max_) - x));
  }

 private:
  int32_t lowest_allowed() const {
    int64_t id = 0;
    while (!is_allowed(row_.allowed_mask, id)) ++id;
    return static_cast<int32_t>(id);
  }

  void apply_mask() {
    bool allows_any = false;
    scratch_.masked.resize(row_.vocab);
    for (int64_t id = 0; id < row_.vocab; ++id) {
      const bool allowed = is_allowed(row_.allowed_mask, id);
      scratch_.masked[id] = allowed ? row_.logits[id] : -kInf;
      allows_any |= allowed;
    }
    if (!allows_any) throw std::invalid_argument("the mask allows no token");
    base_ = scratch_.masked.data();
  }

  bool penalizes() const {
    const SamplerParams& p = *row_.params;
    return p.repeat_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
  }

  // New logits of the ids that bias or penalties change: `touched`, ascending, and `values`.
  void adjust() {
    auto &touched = scratch_.touched, &recent = scratch_.recent;
    auto& values = scratch_.values;
    recent.clear();
    if (penalizes()) recent.assign(row_.penalty_tokens, row_.penalty_tokens + row_.num_penalty_tokens);
    std::sort(recent.begin(), recent.end());
    touched = recent;
    touched.insert(touched.end(), row_.bias_ids, row_.bias_ids + row_.num_bias);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    values.resize(touched.size());
    for (size_t i = 0; i < touched.size(); ++i) values[i] = row_.logits[touched[i]];
    for (int64_t i = 0; i < row_.num_bias; ++i)
      values[std::lower_bound(touched.begin(), touched.end(), row_.bias_ids[i]) - touched.begin()] +=
          row_.bias_values[i];
    for (size_t i = 0; i < touched.size(); ++i) {
      const auto [first, last] = std::equal_range(recent.begin(), recent.end(), touched[i]);
      if (first != last) values[i] = penalized(values[i], static_cast<float>(last - first));
      if (!is_allowed(row_.allowed_mask, touched[i])) values[i] = -kInf;
    }
  }

  // llama.cpp's formula.
  float penalized(float logit, float count) const {
    const SamplerParams& p = *row_.params;
    logit = logit <= 0 ? logit * p.repeat_penalty : logit / p.repeat_penalty;
    return logit - (count * p.frequency_penalty + p.presence_penalty);
  }

  // Own copies of blocks with changed logits, and of a last block that is not full.
  void patch() {
    auto& blocks = scratch_.patched_blocks;
    blocks.clear();
    for (const int32_t id : scratch_.touched)
      if (blocks.empty() || blocks.back() != id / kScanBlock) blocks.push_back(id / kScanBlock);
    if (row_.vocab % kScanBlock != 0 && (blocks.empty() || blocks.back() != num_blocks_ - 1))
      blocks.push_back(num_blocks_ - 1);
    scratch_.patches.assign(blocks.size() * kScanBlock, -kInf);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int64_t first = blocks[i] * kScanBlock;
      std::copy(base_ + first, base_ + std::min(first + kScanBlock, row_.vocab), &scratch_.patches[i * kScanBlock]);
    }
    size_t i = 0;
    for (size_t t = 0; t < scratch_.touched.size(); ++t) {
      const int32_t id = scratch_.touched[t];
      while (blocks[i] != id / kScanBlock) ++i;
      scratch_.patches[i * kScanBlock + id % kScanBlock] = scratch_.values[t];
    }
  }

  const SampleRow& row_;
  SampleScratch& scratch_;
  const float* base_;
  int64_t num_blocks_;
  float max_;
};

// A floor that at least `k` ids reach, and few more: the k-th largest of at least 8 k maxima of groups of blocks.
float find_floor(const View& view, int64_t k, std::vector<float>& maxima) {
  if (k > view.num_blocks()) return -kInf;
  maxima.assign(view.maxima().begin(), view.maxima().begin() + view.num_blocks());
  for (size_t half = maxima.size() / 2; static_cast<int64_t>(half) >= 8 * k; half /= 2) {
    for (size_t i = 0; i < half; ++i) maxima[i] = std::max(maxima[i], maxima[i + half]);
    if (maxima.size() % 2 != 0) maxima[0] = std::max(maxima[0], maxima.back());
    maxima.resize(half);
  }
  const auto kth = maxima.begin() + (k - 1);
  std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
  return *kth;
}

// Keeps the k best.
Cut cut_top_k(const View& view, int64_t k, SampleScratch& scratch) {
  const float floor = find_floor(view, k, scratch.group_maxima);
  auto& candidates = scratch.candidates;
  candidates.clear();
  int64_t num_at_floor = 0;
  for (int64_t b = 0; b < view.num_blocks(); ++b) {
    if (!(view.maxima()[b] >= floor)) continue;
    const float* x = view.block(b);
    for (int i = 0; i < kScanBlock; ++i) {
      if (!(x[i] >= floor) || x[i] == -kInf) continue;
      if (x[i] == floor && ++num_at_floor > k) continue;  // more than k equal: the lowest ids are enough
      candidates.push_back({x[i], static_cast<int32_t>(b * kScanBlock + i), 0});
    }
  }
  if (static_cast<int64_t>(candidates.size()) < k) return Cut{};
  const auto kth = candidates.begin() + (k - 1);
  std::nth_element(candidates.begin(), kth, candidates.end(), ranks_before);
  return Cut{kth->logit, kth->id};
}

// Of candidates that all fall into one bucket: the one with which the mass reaches `need`.
Cut find_crossing(std::vector<Candidate>& candidates, uint64_t mass, double need) {
  auto first = candidates.begin(), last = candidates.end();
  while (last - first > 32) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, ranks_before);
    uint64_t upper = mass;
    for (auto c = first; c != middle; ++c) upper += c->weight;
    if (static_cast<double>(upper) >= need) {
      last = middle;
    } else {
      mass = upper;
      first = middle;
    }
  }
  std::sort(first, last, ranks_before);
  for (auto c = first;; ++c) {
    mass += c->weight;
    if (static_cast<double>(mass) >= need || c + 1 == last) return Cut{c->logit, c->id};
  }
}

// Keeps the smallest prefix of a cut's survivors that has the share `top_p` of their mass. Weights are integers, so
// sums have no order; ids more than 28 nats below the maximum weigh 0.
class Nucleus {
 public:
  Nucleus(const View& view, const Cut& cut, const ScanKernels& kernels, SampleScratch& scratch)
      : view_(view), cut_(cut), kernels_(kernels), scratch_(scratch) {}

  Cut find(double top_p) {
    weigh_buckets();
    uint64_t total = 0;
    for (const uint64_t m : mass_) total += m;
    const double need = top_p * static_cast<double>(total);
    uint64_t before = 0;
    int crossing = 0;
    while (crossing < kMassBuckets - 1 && static_cast<double>(before + mass_[crossing]) < need)
      before += mass_[crossing++];
    collect(crossing);
    return find_crossing(scratch_.candidates, before, need);
  }

 private:
  // Blocks with a survivor of at least `lowest`.
  template <class Visit>
  void for_each_block(float lowest, const Visit& visit) {
    const std::vector<float>& maxima = view_.maxima();
    for (int64_t b = 0; b < view_.num_blocks(); ++b)
      if (maxima[b] >= lowest && cut_.keeps(maxima[b], id_of(b, 0))) visit(b, view_.block(b));
  }

  void weigh_buckets() {
    // Four tables: neighbours often share a bucket, and one table would make each addition wait for the last.
    uint64_t mass[4][kMassBuckets] = {};
    for_each_block(view_.max() - 40.0f, [&](int64_t b, const float* x) {
      kernels_.weigh(x, view_.max(), weight_, bucket_);
      if (cut_.logit > -kInf)
        for (int i = 0; i < kScanBlock; ++i) weight_[i] = cut_.keeps(x[i], id_of(b, i)) ? weight_[i] : 0;
      for (int i = 0; i < kScanBlock; ++i) mass[i % 4][bucket_[i]] += weight_[i];
    });
    for (int i = 0; i < kMassBuckets; ++i) mass_[i] = mass[0][i] + mass[1][i] + mass[2][i] + mass[3][i];
  }

  // The survivors in one bucket.
  void collect(int crossing) {
    scratch_.candidates.clear();
    const float lowest = view_.max() - static_cast<float>(crossing + 2) / kBucketsPerNat;
    for_each_block(lowest, [&](int64_t b, const float* x) {
      kernels_.weigh(x, view_.max(), weight_, bucket_);
      for (int i = 0; i < kScanBlock; ++i)
        if (bucket_[i] == crossing && weight_[i] != 0 && cut_.keeps(x[i], id_of(b, i)))
          scratch_.candidates.push_back({x[i], id_of(b, i), weight_[i]});
    });
  }

  static int32_t id_of(int64_t b, int i) { return static_cast<int32_t>(b * kScanBlock + i); }

  const View& view_;
  const Cut& cut_;
  const ScanKernels& kernels_;
  SampleScratch& scratch_;
  uint64_t mass_[kMassBuckets];
  uint64_t weight_[kScanBlock];
  int32_t bucket_[kScanBlock];
};

// Drops what is less probable than `min_p` times the best.
Cut cut_min_p(const View& view, const Cut& cut, double min_p) {
  const double least = static_cast<double>(view.max()) + log_positive(min_p);
  float logit = static_cast<float>(least);
  if (static_cast<double>(logit) < least) logit = std::nextafter(logit, kInf);
  return logit > cut.logit ? Cut{logit, std::numeric_limits<int32_t>::max()} : cut;
}

// The largest bits whose v is at most `bound`, or a little more; v is at least 2^-65.
uint64_t bits_within(double bound) {
  const double scaled = bound * 0x1p64;
  return scaled < 0x1p64 ? static_cast<uint64_t>(scaled) : ~uint64_t{0};
}

// The survivor with the best score. An exponential is at least its v, so a block is passed over when its smallest
// exponential is too large for its maximum to reach the best score so far, and an id in the same way. Exact: bounds are
// rounded up, and only scores decide.
class Race {
 public:
  Race(const View& view, const Cut& cut, const SampleRow& row, SampleScratch& scratch)
      : view_(view),
        cut_(cut),
        temperature_(row.params->temperature),
        key_(noise_key(row.params->seed, row.choice, row.position)),
        scale_(scratch.scale) {
    scale_.resize(view.maxima().size());
  }

  int32_t run(const ScanKernels& kernels) {
    kernels.block_scale(view_.maxima().data(), view_.num_blocks(), view_.max(), temperature_, scale_.data());
    best_ = view_.argmax();
    take(best_, noise_of(key_, best_));
    for (int64_t b = 0; b < view_.num_blocks(); ++b) {
      const double bound = scale_[b] * reach_;  // on exponentials
      if (!cut_.keeps(view_.maxima()[b], static_cast<int32_t>(b * kScanBlock))) continue;
      const uint64_t bits = draw(key_.block, b);
      if (bits > bits_within(bound * kScanBlock)) continue;
      visit(b, BlockNoise(key_, b, bits), bound);
    }
    return best_;
  }

 private:
  void visit(int64_t b, const BlockNoise& noise, double bound) {
    if (noise.smallest > bound) return;
    const float* x = view_.block(b);
    const uint64_t limit = bits_within(bound);
    for (int i = 0; i < kScanBlock; ++i) {
      const uint32_t id = static_cast<uint32_t>(b * kScanBlock + i);
      const uint64_t bits = draw(key_.id, id);
      if (bits > limit && id != noise.winner) continue;
      if (!cut_.keeps(x[i], id)) continue;
      const double score = (static_cast<double>(x[i]) - view_.max()) / temperature_ + noise.gumbel(id, bits);
      if (score > score_ || (score == score_ && static_cast<int32_t>(id) < best_)) take(id, score);
    }
  }

  void take(int32_t id, double score) {
    best_ = id;
    score_ = score;
    reach_ = std::exp(-score) * (1 + 1e-9);
  }

  const View& view_;
  const Cut& cut_;
  const double temperature_;
  const NoiseKey key_;
  std::vector<double>& scale_;  // exp of a block maximum's score without noise
  int32_t best_ = 0;
  double score_ = 0, reach_ = 0;  // exp(-score): an exponential of scale * reach makes the same score
};

}  // namespace

double gumbel(uint64_t seed, uint32_t choice, int64_t position, uint32_t id) {
  return noise_of(noise_key(seed, choice, position), id);
}

int32_t sample(const SampleRow& row, const ScanKernels& kernels, SampleScratch& scratch) {
  const SamplerParams& params = *row.params;
  const View view(row, kernels, scratch);
  if (params.temperature == 0 || std::isinf(view.max())) return view.argmax();
  Cut cut;
  if (params.top_k > 0 && params.top_k < row.vocab) cut = cut_top_k(view, params.top_k, scratch);
  if (params.top_p < 1) cut = Nucleus(view, cut, kernels, scratch).find(params.top_p);
  if (params.min_p > 0) cut = cut_min_p(view, cut, params.min_p);
  return Race(view, cut, row, scratch).run(kernels);
}

}  // namespace blockdraft
