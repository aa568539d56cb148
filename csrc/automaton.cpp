#include "automaton.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "hashing.h"

namespace blockdraft {

SuffixAutomaton::SuffixAutomaton(int32_t depth) : depth_(depth), buckets_(16), multiplier_(hash_multiplier(0)) {
  if (depth < 1 || depth > kMaxDepth) {
    throw std::invalid_argument("depth is " + std::to_string(depth) + "; it must be in [1, " + std::to_string(kMaxDepth) + "]");
  }
  states_.add({});
  edges_.add({});
}

size_t SuffixAutomaton::nbytes() const {
  return sizeof(*this) + states_.nbytes() + edges_.nbytes() + buckets_.capacity() * sizeof(uint32_t);
}

void SuffixAutomaton::extend(const int32_t* token_ids, int64_t count) {
  if (count > kMaxAutomatonTokens - num_tokens_) {
    throw std::invalid_argument(std::to_string(count) + " tokens after " + std::to_string(num_tokens_) + " are more than " +
                                std::to_string(kMaxAutomatonTokens));
  }
  for (int64_t i = 0; i < count; ++i) append(token_ids[i]);
}

void SuffixAutomaton::contexts(Place place, std::vector<Context>& found) const {
  place = renewed(place, depth_);
  found.clear();
  for (uint32_t state = place.state; state != kRoot; state = states_[state].link) {
    const State& here = states_[state];
    // Nothing follows the end of the automaton's own text.
    const int32_t num_followed = here.count - (here.latest == num_tokens_);
    if (num_followed) found.push_back({state, std::min(place.length, here.length), num_followed});
  }
}

Place SuffixAutomaton::follow(Place place, int32_t token) const {
  place = renewed(place, depth_);
  uint32_t target;
  while (!(target = step(place.state, token)) && place.state != kRoot) {
    place.state = states_[place.state].link;
    place.length = states_[place.state].length;
  }
  return target ? Place{target, place.length + 1} : Place{};
}

// The end of at most `depth` tokens; the class of `place` may have been split.
Place SuffixAutomaton::renewed(Place place, int32_t depth) const {
  place.length = std::min(place.length, depth);
  while (place.state != kRoot && states_[states_[place.state].link].length >= place.length) {
    place.state = states_[place.state].link;
  }
  return place;
}

// Adds a token by the online construction, then counts what ends there.
void SuffixAutomaton::append(int32_t token) {
  const uint32_t fresh = states_.add({.length = num_tokens_ + 1});
  ++num_tokens_;
  uint32_t state = last_, target;
  last_ = fresh;
  while (!(target = step(state, token))) {
    add_transition(state, token, fresh);
    if (state == kRoot) break;
    state = states_[state].link;
  }
  if (target) {
    if (states_[target].length > states_[state].length + 1) target = split(state, token, target);
    states_[fresh].link = target;
  }
  const Place before = renewed(end_, depth_);
  end_ = renewed({step(before.state, token), before.length + 1}, depth_ + 1);
  count_ends();
  if (token != kSeparator) rank(before.state, token);
}

// Gives the shorter runs of `target`, those from `state` on, a state of their own.
uint32_t SuffixAutomaton::split(uint32_t state, int32_t token, uint32_t target) {
  State shorter = states_[target];
  shorter.length = states_[state].length + 1;
  shorter.first_edge = 0;
  const uint32_t fresh = states_.add(shorter);
  for (uint32_t edge = states_[target].first_edge; edge; edge = edges_[edge].next_of_state) {
    add_edge(fresh, edges_[edge].token, edges_[edge].target);
  }
  states_[target].link = fresh;
  while (step(state, token) == target) {
    replace_transition(state, token, fresh);
    if (state == kRoot) break;
    state = states_[state].link;
  }
  return fresh;
}

// Counts the runs that end at the last token.
void SuffixAutomaton::count_ends() {
  for (uint32_t state = end_.state; state != kRoot; state = states_[state].link) {
    ++states_[state].count;
    states_[state].latest = num_tokens_;
  }
}

// Where the token that came is now the most frequent one, holds it in the state.
void SuffixAutomaton::rank(uint32_t state, int32_t token) {
  for (; state != kRoot; state = states_[state].link) {
    State& here = states_[state];
    if (here.token == token || !here.first_edge) continue;
    const uint32_t edge = find_edge(state, token);
    if (here.token == kSeparator || states_[edges_[edge].target].count >= states_[here.target].count) exchange(here, edge);
  }
}

uint32_t SuffixAutomaton::find_edge(uint32_t state, int32_t token) const {
  uint32_t edge = buckets_[bucket(state, token)];
  while (edge && (edges_[edge].state != state || edges_[edge].token != token)) edge = edges_[edge].next_in_bucket;
  return edge;
}

// The token never followed the runs of `state` so far.
void SuffixAutomaton::add_transition(uint32_t state, int32_t token, uint32_t target) {
  State& from = states_[state];
  if (from.target == kRoot) {
    from.token = token, from.target = target;
  } else {
    add_edge(state, token, target);
  }
}

void SuffixAutomaton::replace_transition(uint32_t state, int32_t token, uint32_t target) {
  State& from = states_[state];
  (from.token == token ? from.target : edges_[find_edge(state, token)].target) = target;
}

void SuffixAutomaton::add_edge(uint32_t state, int32_t token, uint32_t target) {
  const uint32_t edge = edges_.add({state, token, target, states_[state].first_edge, 0});
  states_[state].first_edge = edge;
  if (edge < buckets_.size()) return hang(edge);
  buckets_ = std::vector<uint32_t>(2 * buckets_.size());
  for (uint32_t i = 1; i < edges_.size(); ++i) hang(i);
}

// Makes an edge of a state its most frequent transition, and that an edge.
void SuffixAutomaton::exchange(State& state, uint32_t edge) {
  Edge& changed = edges_[edge];
  uint32_t* place = &buckets_[bucket(changed.state, changed.token)];
  while (*place != edge) place = &edges_[*place].next_in_bucket;
  *place = changed.next_in_bucket;
  std::swap(changed.token, state.token);
  std::swap(changed.target, state.target);
  hang(edge);
}

size_t SuffixAutomaton::bucket(uint32_t state, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(state) << 32 | static_cast<uint32_t>(token);
  return multiplier_ * key >> (64 - std::countr_zero(buckets_.size()));
}

void SuffixAutomaton::hang(uint32_t edge) {
  uint32_t& first = buckets_[bucket(edges_[edge].state, edges_[edge].token)];
  edges_[edge].next_in_bucket = first;
  first = edge;
}

RecentText::RecentText(int32_t depth, int64_t max_tokens)
    : max_tokens_(max_tokens),
      automaton_(std::make_shared<SuffixAutomaton>(depth)),
      next_(std::make_shared<SuffixAutomaton>(depth)) {
  if (max_tokens < 2 || max_tokens > kMaxAutomatonTokens) {
    throw std::invalid_argument("max_tokens is " + std::to_string(max_tokens) + "; it must be in [2, " +
                                std::to_string(kMaxAutomatonTokens) + "]");
  }
}

void RecentText::extend(const int32_t* token_ids, int64_t count) {
  const int64_t half = max_tokens_ / 2;
  num_tokens_ += count;
  while (count) {
    if (automaton_->num_tokens() == max_tokens_) {
      automaton_ = std::move(next_);
      next_ = std::make_shared<SuffixAutomaton>(automaton_->depth());
    }
    const int64_t known = automaton_->num_tokens();
    // Up to the next place where something changes.
    const int64_t piece = std::min(count, (known < half ? half : max_tokens_) - known);
    automaton_->extend(token_ids, piece);
    if (known >= half) next_->extend(token_ids, piece);
    token_ids += piece, count -= piece;
  }
}

}  // namespace blockdraft
