// Where every n-gram of a growing text occurred last.
//
// An n-gram enters when its continuation is known, so a lookup never finds the end itself. It is kept as the place of that
// continuation, found by a hash and compared with the text. Knows tokens as integers. One thread at a time. A token costs
// an expected constant time for each size and at most 8 bytes and, for each size, 11 bytes (16 while a table doubles).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockdraft {

inline constexpr int32_t kMaxNgram = 16;
inline constexpr int64_t kMaxNgramTokens = (int64_t{1} << 31) - 1;

class NgramIndex {
 public:
  struct Match {
    int32_t size = 0;   // tokens that agree, 0 for no match
    int64_t place = 0;  // where what followed begins
  };

  // Of n-grams from `min_size` to `max_size` tokens. Throws std::invalid_argument unless
  // 1 <= min_size <= max_size <= kMaxNgram.
  NgramIndex(int32_t min_size, int32_t max_size);

  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  size_t nbytes() const;

  // Adds tokens to the end of the text. Throws std::invalid_argument when it would have more than kMaxNgramTokens.
  void extend(const int32_t* token_ids, int64_t count);

  // The latest occurrence of the longest end that occurred before.
  Match match() const;

  // What stands `offset` tokens after a match. Where its occurrence overlaps the end, what follows repeats: "a b a b" goes
  // on "a b a b".
  int32_t following(const Match& match, int64_t offset) const {
    return tokens_[static_cast<size_t>(match.place + offset % (num_tokens() - match.place))];
  }

 private:
  // Open addressing with linear probing; places are never 0, which stands for a free slot.
  struct Table {
    std::vector<uint32_t> places;
    size_t used = 0;
  };

  template <class Fn>
  void each_size(size_t place, Fn fn) const;
  // The slot of the n-gram before `place`, or the free one where it would be.
  size_t slot(const Table& table, size_t place, int32_t size, uint64_t hash) const;
  void put(Table& table, size_t place, int32_t size, uint64_t hash);
  void grow(Table& table, int32_t size) const;
  uint64_t hash_before(size_t place, int32_t size) const;

  int32_t min_size_, max_size_;
  std::vector<int32_t> tokens_;
  std::vector<Table> tables_;                        // by size, from min_size
  std::array<uint64_t, kMaxNgram + 1> multipliers_;  // by distance from the end
};

}  // namespace blockdraft
