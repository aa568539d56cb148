// A suffix automaton that grows with its text: every run of tokens that occurred, and how often.
//
// A state is a class of runs that end at the same places. Its suffix link leads to the longest run of its end that occurs
// at more places, so the links from the end of a text are the contexts of what comes next, longest first. Knows tokens as
// integers, no sequences and no drafts. One thread at a time.
//
// A text of n tokens has at most 2n states, and n transitions beside the first of each state (those of all states are at
// most n more than there are states). The first, later the most frequent, lies in its state; the others are found by a
// hash of state and token. So a token costs at most 2 * 28 bytes of states, 20 of a transition, 8 of its bucket and 4
// while the buckets double. Time is amortised constant: at most `depth` steps to count, an expected constant of each hash,
// whatever the tokens, and a state that is split copies transitions, n in all.
//
// Sources: Blumer et al., 1985, "The smallest automaton recognizing the subwords of a text"; Dietzfelbinger et al., 1997,
// "A reliable randomized algorithm for the closest-pair problem" (the hash).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pages.h"

namespace blockdraft {

inline constexpr int32_t kMaxDepth = 1 << 10;
inline constexpr int64_t kMaxAutomatonTokens = (1 << 30) - 1;  // states have 31 bits
inline constexpr int64_t kAutomatonBytesPerToken = 96;         // at most; a pair of pages and 1 KiB are free

// The end of some text, as far as an automaton knows it.
struct Place {
  uint32_t state = 0;  // the class of its longest run that occurred
  int32_t length = 0;  // tokens of that run, up to one more than the depth
};

// A run at the end of some text that was followed by something.
struct Context {
  uint32_t state;        // its class
  int32_t length;        // its tokens
  int32_t num_followed;  // how often a token or the end of a text followed it
};

class SuffixAutomaton {
 public:
  static constexpr uint32_t kRoot = 0;        // the state of the empty run; no transition leads to it
  static constexpr int32_t kSeparator = -1;  // stands between texts

  // Contexts have at most `depth` tokens; longer runs are found but not counted. Throws std::invalid_argument unless
  // 1 <= depth <= kMaxDepth.
  explicit SuffixAutomaton(int32_t depth);
  SuffixAutomaton(const SuffixAutomaton&) = delete;
  SuffixAutomaton& operator=(const SuffixAutomaton&) = delete;

  int32_t depth() const { return depth_; }
  int32_t num_tokens() const { return num_tokens_; }
  uint32_t num_states() const { return states_.size(); }
  size_t nbytes() const;

  // Adds tokens to the end of the text. Throws std::invalid_argument when a text would have more than
  // kMaxAutomatonTokens; nothing is added then. Tokens are not negative, but for kSeparator.
  void extend(const int32_t* token_ids, int64_t count);

  // The end of the text itself.
  Place end() const { return renewed(end_, depth_); }

  // The state of the runs of `state` with one more token; kRoot if that never occurred.
  uint32_t step(uint32_t state, int32_t token) const {
    const State& from = states_[state];
    if (from.token == token) return from.target;
    return from.first_edge ? edges_[find_edge(state, token)].target : kRoot;
  }

  // The token that most often followed a context, the latest of equals; kSeparator if nothing else did.
  int32_t follower(uint32_t state) const { return states_[state].token; }

  // How often the runs of `state` occurred, those of at most depth + 1 tokens.
  int32_t count(uint32_t state) const { return state ? states_[state].count : num_tokens_; }

  // The ends of a text that were followed by something, longest first; replaces what is in `found`. The automaton may have
  // grown since `place` was found.
  void contexts(Place place, std::vector<Context>& found) const;

  // The place after one more token of its text, amortised constant over that text. The automaton may have grown.
  Place follow(Place place, int32_t token) const;

 private:
  struct State {
    int32_t length = 0;  // of its longest run
    uint32_t link = kRoot;
    int32_t count = 0;
    int32_t latest = 0;  // tokens of the text when it was last counted
    int32_t token = 0;   // the most frequent transition
    uint32_t target = kRoot;
    uint32_t first_edge = 0;  // the others, 0 for none
  };
  struct Edge {
    uint32_t state;
    int32_t token;
    uint32_t target;
    uint32_t next_of_state;
    uint32_t next_in_bucket;
  };

  void append(int32_t token);
  uint32_t split(uint32_t state, int32_t token, uint32_t target);
  void count_ends();
  void rank(uint32_t state, int32_t token);
  Place renewed(Place place, int32_t depth) const;

  uint32_t find_edge(uint32_t state, int32_t token) const;
  void add_transition(uint32_t state, int32_t token, uint32_t target);
  void replace_transition(uint32_t state, int32_t token, uint32_t target);
  void add_edge(uint32_t state, int32_t token, uint32_t target);
  void exchange(State& state, uint32_t edge);
  size_t bucket(uint32_t state, int32_t token) const;
  void hang(uint32_t edge);

  int32_t depth_;
  int32_t num_tokens_ = 0;
  uint32_t last_ = kRoot;
  Place end_;  // of depth + 1 tokens: contexts and their followers are counted
  Pages<State> states_;
  Pages<Edge> edges_;              // the first stands for none, and leads to the root
  std::vector<uint32_t> buckets_;  // a power of two of them, at least as many as edges
  uint64_t multiplier_;
};

// The automaton of the latest tokens of a text without end.
//
// Two automata in rotation: once the first is half full the second grows beside it, and takes its place when it is full.
// So at least the latest half of `max_tokens` is always known, and memory is at most that of one and a half times
// `max_tokens`.
class RecentText {
 public:
  // Throws std::invalid_argument unless 2 <= max_tokens <= kMaxAutomatonTokens.
  RecentText(int32_t depth, int64_t max_tokens);

  void extend(const int32_t* token_ids, int64_t count);
  // What is known; another one after a rotation.
  const std::shared_ptr<SuffixAutomaton>& automaton() const { return automaton_; }
  // Tokens of the whole text, the forgotten ones included.
  int64_t num_tokens() const { return num_tokens_; }

 private:
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  std::shared_ptr<SuffixAutomaton> automaton_, next_;
};

}  // namespace blockdraft
