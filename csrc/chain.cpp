#include "chain.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace blockdraft {

namespace {

// What was counted of one context.
struct Counted {
  int32_t length;
  double num_followed;
};

// The end of a chain in an automaton.
class InAutomaton {
 public:
  static constexpr int32_t kNone = SuffixAutomaton::kSeparator;

  InAutomaton(const SuffixAutomaton& automaton, Place end) : automaton_(automaton) { automaton.contexts(end, contexts_); }

  int32_t depth() const { return automaton_.depth(); }
  size_t num_contexts() const { return contexts_.size(); }  // longest first
  Counted counted(size_t i) const { return {contexts_[i].length, static_cast<double>(contexts_[i].num_followed)}; }
  int32_t follower(size_t i) const { return automaton_.follower(contexts_[i].state); }
  // How often `token` followed a context.
  double count(size_t i, int32_t token) const {
    const uint32_t longer = automaton_.step(contexts_[i].state, token);
    return longer ? automaton_.count(longer) : 0;
  }
  // On to `token`, which follows context `i` and no longer one.
  void go_on(size_t i, int32_t token) {
    const Place end{automaton_.step(contexts_[i].state, token), contexts_[i].length + 1};
    automaton_.contexts(end, contexts_);
  }

 private:
  const SuffixAutomaton& automaton_;
  std::vector<Context> contexts_;
};

// The end of a chain in an ordered text. Of contexts that occur equally often, at the same places then, the longest counts.
class InOrder {
 public:
  static constexpr int32_t kNone = SuffixOrder::kSeparator;

  InOrder(const SuffixOrder& order, const SuffixOrder::Ends& ends) : order_(order), ends_(ends) { tell_apart(); }

  int32_t depth() const { return order_.depth(); }
  size_t num_contexts() const { return lengths_.size(); }
  Counted counted(size_t i) const { return {lengths_[i], static_cast<double>(range(i).size())}; }
  int32_t follower(size_t i) const { return order_.follower(range(i), lengths_[i]); }
  double count(size_t i, int32_t token) const {
    return static_cast<double>(order_.narrowed(range(i), lengths_[i], token).size());
  }
  void go_on(size_t, int32_t token) {
    ends_ = order_.followed(ends_, token);
    tell_apart();
  }

 private:
  SuffixOrder::Range range(size_t i) const { return ends_[static_cast<size_t>(lengths_[i])]; }
  void tell_apart() {
    lengths_.clear();
    int64_t longer = 0;
    for (size_t length = ends_.size(); length-- > 1; longer = ends_[length].size()) {
      if (ends_[length].size() != longer) lengths_.push_back(static_cast<int32_t>(length));
    }
  }

  const SuffixOrder& order_;
  SuffixOrder::Ends ends_;
  std::vector<int32_t> lengths_;  // longest first
};

template <class End>
double prob_of(const End& end, int32_t token, const std::vector<double>& discounts) {
  double prob = 0.0;
  for (size_t i = end.num_contexts(); i-- > 0;) {
    const Counted context = end.counted(i);
    const double discount = discounts[static_cast<size_t>(context.length)];
    prob = (end.count(i, token) + discount * prob) / (context.num_followed + discount);
  }
  return prob;
}

// The longest context of at least `min_match` tokens that a token followed, and that token; the latter is kNone if there is
// none.
template <class End>
std::pair<size_t, int32_t> likeliest(const End& end, int32_t min_match) {
  for (size_t i = 0; i < end.num_contexts() && end.counted(i).length >= min_match; ++i) {
    const int32_t token = end.follower(i);
    if (token != End::kNone) return {i, token};
  }
  return {0, End::kNone};
}

template <class End>
Chain chain_from(End end, int64_t max_drafts, const ChainRule& rule) {
  if (rule.discounts.size() != static_cast<size_t>(end.depth()) + 1) {
    throw std::invalid_argument(std::to_string(rule.discounts.size()) + " discounts for contexts of 0 to " +
                                std::to_string(end.depth()) + " tokens");
  }
  Chain chain;
  double path_prob = 1.0;
  for (int64_t drafted = 0; drafted < max_drafts; ++drafted) {
    const auto [context, token] = likeliest(end, rule.min_match);
    if (token == End::kNone) break;
    const double prob = prob_of(end, token, rule.discounts);
    path_prob *= prob;
    const double worth = drafted < rule.num_cheap ? rule.cheap_min_path_prob : rule.min_path_prob;
    if (path_prob < worth || prob < rule.min_prob) break;
    chain.token_ids.push_back(token);
    chain.probs.push_back(prob);
    chain.expected += path_prob;
    end.go_on(context, token);
  }
  return chain;
}

}  // namespace

Chain best_chain(const SuffixAutomaton& automaton, Place end, int64_t max_drafts, const ChainRule& rule) {
  return chain_from(InAutomaton(automaton, end), max_drafts, rule);
}

Chain best_chain(const SuffixOrder& order, const SuffixOrder::Ends& ends, int64_t max_drafts, const ChainRule& rule) {
  return chain_from(InOrder(order, ends), max_drafts, rule);
}

}  // namespace blockdraft
