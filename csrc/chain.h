// A chain of drafts from a known text: what most often followed the longest contexts, and how probable it is.
//
// q of a token in a context that was followed n times, by this token c times, is (c + a q') / (n + a), where q' is that of
// the next shorter context, 0 below one token, and a is the discount of the context's length. All in binary64, shortest
// context first. Knows no sequences. Source: MacKay and Peto, 1995, "A hierarchical Dirichlet language model".
#pragma once

#include <cstdint>
#include <vector>

#include "automaton.h"
#include "suffix_order.h"

namespace blockdraft {

struct ChainRule {
  int32_t min_match;           // tokens of the end that must have occurred before
  double min_prob;             // a draft whose q is lower ends the chain before it
  double min_path_prob;        // the same for q of it and of all before it together
  int64_t num_cheap;           // of the first drafts another one counts
  double cheap_min_path_prob;
  std::vector<double> discounts;  // by the length of a context, 0 .. depth
};

struct Chain {
  std::vector<int32_t> token_ids;
  std::vector<double> probs;
  double expected = 0.0;  // drafts that will be kept
};

// At most `max_drafts` drafts after `end`. Throws std::invalid_argument unless there are depth + 1 discounts.
Chain best_chain(const SuffixAutomaton& automaton, Place end, int64_t max_drafts, const ChainRule& rule);
Chain best_chain(const SuffixOrder& order, const SuffixOrder::Ends& ends, int64_t max_drafts, const ChainRule& rule);

}  // namespace blockdraft
