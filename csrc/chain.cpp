#include "chain.h"

#include <stdexcept>
#include <string>

namespace blockdraft {

namespace {

// The longest context of at least `min_match` tokens that a token followed; null if there is none.
const Context* likeliest(const SuffixAutomaton& automaton, const std::vector<Context>& contexts, int32_t min_match) {
  for (const Context& context : contexts) {
    if (context.length < min_match) break;
    if (automaton.follower(context.state) != SuffixAutomaton::kSeparator) return &context;
  }
  return nullptr;
}

double prob_of(const SuffixAutomaton& automaton, const std::vector<Context>& contexts, int32_t token,
               const std::vector<double>& discounts) {
  double prob = 0.0;
  for (auto context = contexts.rbegin(); context != contexts.rend(); ++context) {
    const uint32_t longer = automaton.step(context->state, token);
    const double count = longer ? automaton.count(longer) : 0;
    const double discount = discounts[static_cast<size_t>(context->length)];
    prob = (count + discount * prob) / (context->num_followed + discount);
  }
  return prob;
}

}  // namespace

Chain best_chain(const SuffixAutomaton& automaton, Place end, int64_t max_drafts, const ChainRule& rule) {
  if (rule.discounts.size() != static_cast<size_t>(automaton.depth()) + 1) {
    throw std::invalid_argument(std::to_string(rule.discounts.size()) + " discounts for contexts of 0 to " +
                                std::to_string(automaton.depth()) + " tokens");
  }
  Chain chain;
  std::vector<Context> contexts;
  double path_prob = 1.0;
  for (int64_t drafted = 0; drafted < max_drafts; ++drafted) {
    automaton.contexts(end, contexts);
    const Context* context = likeliest(automaton, contexts, rule.min_match);
    if (!context) break;
    const int32_t token = automaton.follower(context->state);
    const double prob = prob_of(automaton, contexts, token, rule.discounts);
    path_prob *= prob;
    const double worth = drafted < rule.num_cheap ? rule.cheap_min_path_prob : rule.min_path_prob;
    if (path_prob < worth || prob < rule.min_prob) break;
    chain.token_ids.push_back(token);
    chain.probs.push_back(prob);
    chain.expected += path_prob;
    end = {automaton.step(context->state, token), context->length + 1};
  }
  return chain;
}

}  // namespace blockdraft
