#include "suffix_order.h"

#include <stdexcept>
#include <string>

namespace blockdraft {

namespace {

constexpr int64_t kSample = 64;  // places of a range that are looked at

// The first rank in [first, last) for which `is_past` holds; it holds for all after it.
template <class Past>
int64_t bisect(int64_t first, int64_t last, Past is_past) {
  while (first < last) {
    const int64_t middle = first + (last - first) / 2;
    if (is_past(middle)) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace

SuffixOrder::SuffixOrder(const int32_t* token_ids, const int32_t* places, int64_t size, int32_t depth)
    : token_ids_(token_ids), places_(places), size_(size), depth_(depth) {
  if (depth < 1) throw std::invalid_argument("contexts of " + std::to_string(depth) + " tokens; at least 1");
  for (int64_t i = 0; i < size; ++i) {
    if (places[i] < 0 || places[i] >= size) {
      throw std::invalid_argument("place " + std::to_string(places[i]) + " of a text of " + std::to_string(size) + " tokens");
    }
    if (token_ids[i] < kSeparator) throw std::invalid_argument("token id " + std::to_string(token_ids[i]) + " is negative");
  }
}

SuffixOrder::Range SuffixOrder::narrowed(Range context, int32_t length, int32_t token) const {
  const int64_t first =
      bisect(context.first, context.last, [&](int64_t rank) { return at(rank, length) >= token; });
  const int64_t last = bisect(first, context.last, [&](int64_t rank) { return at(rank, length) > token; });
  return {first, last};
}

SuffixOrder::Ends SuffixOrder::followed(const Ends& ends, int32_t token) const {
  Ends longer = nowhere();
  for (size_t length = 0; length < ends.size() && length < static_cast<size_t>(depth_); ++length) {
    const Range range = narrowed(ends[length], static_cast<int32_t>(length), token);
    if (!range.size()) break;  // longer runs end with this one
    longer.push_back(range);
  }
  return longer;
}

int32_t SuffixOrder::follower(Range context, int32_t length) const {
  const int64_t count = context.size() < kSample ? context.size() : kSample;
  int32_t best = kSeparator, token = kSeparator;
  int64_t most = 0, times = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t next = at(context.first + i * context.size() / count, length);
    times = next == token ? times + 1 : 1;  // equal ones are neighbours
    token = next;
    if (token != kSeparator && times > most) {
      most = times;
      best = token;
    }
  }
  return best;
}

}  // namespace blockdraft
