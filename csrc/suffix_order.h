// A text that grows no more, with its suffixes in order: where a run of tokens occurred is found by bisection.
//
// The order has the places of the text, ascending by the tokens from there on (a suffix array), so that places at which the
// same tokens begin are neighbours. A context of the end of some other text is such a range, and one more token narrows it.
// Text and order are the caller's and may lie in a mapped file: 8 bytes for each token, of which a look reads some. An order
// that is wrong gives wrong ranges, and nothing is read outside the text. Knows tokens as integers; any number of threads.
//
// Source: Manber and Myers, 1993, "Suffix arrays: a new method for on-line string searches".
#pragma once

#include <cstdint>
#include <vector>

namespace blockdraft {

class SuffixOrder {
 public:
  static constexpr int32_t kSeparator = -1;  // stands between texts; ordered before all tokens

  // Neighbouring places of the order at which the same tokens begin.
  struct Range {
    int64_t first = 0;
    int64_t last = 0;  // one past the last
    int64_t size() const { return last - first; }
  };

  // The contexts of the end of some text by their length, from the empty one, as long as they occur.
  using Ends = std::vector<Range>;

  // Throws std::invalid_argument unless 1 <= depth, every place lies in the text and every token is one or kSeparator.
  SuffixOrder(const int32_t* token_ids, const int32_t* places, int64_t size, int32_t depth);

  int32_t depth() const { return depth_; }
  int64_t num_tokens() const { return size_; }

  // The end of a text of which nothing is known.
  Ends nowhere() const { return {{0, size_}}; }

  // Those of a context of `length` tokens that `token` follows.
  Range narrowed(Range context, int32_t length, int32_t token) const;

  // The ends after one more token of their text: runs of at most `depth` tokens.
  Ends followed(const Ends& ends, int32_t token) const;

  // The token that follows a context of `length` tokens most often, in a sample of its places if they are many, the first
  // of equals; kSeparator if none does.
  int32_t follower(Range context, int32_t length) const;

 private:
  int32_t at(int64_t rank, int32_t offset) const {
    const int64_t place = static_cast<int64_t>(places_[rank]) + offset;
    return place < size_ ? token_ids_[place] : kSeparator;
  }

  const int32_t* token_ids_;
  const int32_t* places_;
  int64_t size_;
  int32_t depth_;
};

}  // namespace blockdraft
