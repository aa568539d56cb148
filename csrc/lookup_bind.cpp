// Python surface of drafting without a network: automata, ordered texts, chains, n-grams. Argument checks only; holds the
// GIL, since a call takes microseconds and one thread at a time may use an object.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "chain.h"
#include "ngram.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace blockdraft {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Automaton = std::shared_ptr<SuffixAutomaton>;

int64_t size_of(const Ids& ids) { return static_cast<int64_t>(ids.size()); }

// Throws before anything is changed.
void check_ids(const Ids& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids.data()[i] < 0) throw std::invalid_argument("token id " + std::to_string(ids.data()[i]) + " is negative");
  }
}

template <class Text>
void extend(Text& text, const Ids& ids) {
  check_ids(ids);
  text.extend(ids.data(), size_of(ids));
}

template <class Text>
void separate(Text& text) {
  text.extend(&SuffixAutomaton::kSeparator, 1);
}

// The end of a text in one automaton, which it keeps alive: its place cannot be taken for one in another.
struct Cursor {
  Automaton automaton;
  Place place;

  void follow(const Ids& ids) {
    check_ids(ids);
    for (size_t i = 0; i < ids.size(); ++i) place = automaton->follow(place, ids.data()[i]);
  }

  nb::list contexts() const {
    std::vector<Context> found;
    automaton->contexts(place, found);
    nb::list contexts;
    for (const Context& context : found) {
      const int32_t token = automaton->follower(context.state);
      const nb::object follower = token == SuffixAutomaton::kSeparator ? nb::none() : nb::object(nb::int_(token));
      contexts.append(nb::make_tuple(context.length, context.num_followed, follower));
    }
    return contexts;
  }
};

// The end of some text in an ordered text; keeps the arrays alive.
class OrderedText {
 public:
  OrderedText(Ids token_ids, Ids places, int32_t depth)
      : token_ids_(std::move(token_ids)),
        places_(std::move(places)),
        order_(token_ids_.data(), places_.data(), checked_size(), depth) {}

  const SuffixOrder& order() const { return order_; }

 private:
  int64_t checked_size() const {
    if (token_ids_.size() != places_.size()) {
      throw std::invalid_argument(std::to_string(places_.size()) + " places of a text of " +
                                  std::to_string(token_ids_.size()) + " tokens");
    }
    return size_of(token_ids_);
  }

  Ids token_ids_, places_;
  SuffixOrder order_;
};

struct OrderCursor {
  std::shared_ptr<OrderedText> text;
  SuffixOrder::Ends ends;

  void follow(const Ids& ids) {
    check_ids(ids);
    for (size_t i = 0; i < ids.size(); ++i) ends = text->order().followed(ends, ids.data()[i]);
  }
};

template <class T>
nb::tuple to_tuple(const std::vector<T>& values) {
  nb::list list;
  for (const T value : values) list.append(value);
  return nb::tuple(list);
}

nb::tuple to_tuple(const Chain& chain) {
  return nb::make_tuple(to_tuple(chain.token_ids), to_tuple(chain.probs), chain.expected);
}

nb::tuple best_chain_after(const Cursor& end, int64_t max_drafts, const ChainRule& rule) {
  return to_tuple(best_chain(*end.automaton, end.place, max_drafts, rule));
}

nb::tuple best_chain_in_order(const OrderCursor& end, int64_t max_drafts, const ChainRule& rule) {
  return to_tuple(best_chain(end.text->order(), end.ends, max_drafts, rule));
}

nb::list contexts_in_order(const OrderCursor& end) {
  nb::list contexts;
  for (size_t length = end.ends.size(); length-- > 1;) {
    contexts.append(nb::make_tuple(static_cast<int64_t>(length), end.ends[length].size()));
  }
  return contexts;
}

// How often a run occurred; 0 for never.
int32_t count(const SuffixAutomaton& automaton, const Ids& run) {
  check_ids(run);
  if (size_of(run) > automaton.depth() + 1) {
    throw std::invalid_argument("a run of " + std::to_string(run.size()) + " tokens; those of at most " +
                                std::to_string(automaton.depth() + 1) + " are counted");
  }
  uint32_t state = SuffixAutomaton::kRoot;
  for (size_t i = 0; i < run.size(); ++i) {
    state = automaton.step(state, run.data()[i]);
    if (state == SuffixAutomaton::kRoot) return 0;
  }
  return automaton.count(state);
}

nb::tuple continuation(const NgramIndex& index, int64_t max_tokens) {
  const NgramIndex::Match match = index.match();
  nb::list tokens;
  for (int64_t i = 0; match.size && i < max_tokens; ++i) tokens.append(index.following(match, i));
  return nb::make_tuple(match.size, nb::tuple(tokens));
}

void bind_automaton(nb::module_& m) {
  nb::class_<SuffixAutomaton> automaton(m, "SuffixAutomaton");
  automaton.def(nb::init<int32_t>(), "depth"_a)
      .def_prop_ro("depth", &SuffixAutomaton::depth)
      .def_prop_ro("num_tokens", &SuffixAutomaton::num_tokens)
      .def_prop_ro("num_states", &SuffixAutomaton::num_states)
      .def_prop_ro("nbytes", &SuffixAutomaton::nbytes)
      .def("extend", &extend<SuffixAutomaton>, "token_ids"_a.noconvert())
      .def("separate", &separate<SuffixAutomaton>)
      .def("end", [](Automaton automaton) { return Cursor{automaton, automaton->end()}; })
      .def("count", &count, "run"_a.noconvert());
  automaton.attr("BYTES_PER_TOKEN") = kAutomatonBytesPerToken;
  nb::class_<RecentText>(m, "RecentText")
      .def(nb::init<int32_t, int64_t>(), "depth"_a, "max_tokens"_a)
      .def_prop_ro("automaton", &RecentText::automaton)
      .def_prop_ro("num_tokens", &RecentText::num_tokens)
      .def("extend", &extend<RecentText>, "token_ids"_a.noconvert())
      .def("separate", &separate<RecentText>);
}

void bind_chain(nb::module_& m) {
  nb::class_<ChainRule>(m, "ChainRule")
      .def(
          "__init__",
          [](ChainRule* rule, int32_t min_match, double min_prob, double min_path_prob, int64_t num_cheap,
             double cheap_min_path_prob, std::vector<double> discounts) {
            for (const double discount : discounts) {
              if (!(discount >= 0)) throw std::invalid_argument("discount " + std::to_string(discount) + " is negative");
            }
            new (rule) ChainRule{min_match, min_prob, min_path_prob, num_cheap, cheap_min_path_prob, std::move(discounts)};
          },
          "min_match"_a, "min_prob"_a, "min_path_prob"_a, "num_cheap"_a, "cheap_min_path_prob"_a, "discounts"_a);
  nb::class_<Cursor>(m, "Cursor")
      .def(
          "__init__", [](Cursor* cursor, Automaton automaton) { new (cursor) Cursor{std::move(automaton), {}}; }, "automaton"_a)
      .def_ro("automaton", &Cursor::automaton)
      .def_prop_ro("length", [](const Cursor& cursor) { return cursor.place.length; })
      .def("follow", &Cursor::follow, "token_ids"_a.noconvert())
      .def("contexts", &Cursor::contexts)
      .def("best_chain", &best_chain_after, "max_drafts"_a, "rule"_a);
}

void bind_order(nb::module_& m) {
  nb::class_<OrderedText>(m, "OrderedText")
      .def(nb::init<Ids, Ids, int32_t>(), "token_ids"_a.noconvert(), "places"_a.noconvert(), "depth"_a)
      .def_prop_ro("num_tokens", [](const OrderedText& text) { return text.order().num_tokens(); })
      .def("cursor", [](std::shared_ptr<OrderedText> text) {
        SuffixOrder::Ends ends = text->order().nowhere();
        return OrderCursor{std::move(text), std::move(ends)};
      });
  nb::class_<OrderCursor>(m, "OrderCursor")
      .def("follow", &OrderCursor::follow, "token_ids"_a.noconvert())
      .def("contexts", &contexts_in_order)
      .def("best_chain", &best_chain_in_order, "max_drafts"_a, "rule"_a);
}

}  // namespace

void bind_lookup(nb::module_& m) {
  bind_automaton(m);
  bind_chain(m);
  bind_order(m);
  nb::class_<NgramIndex>(m, "NgramIndex")
      .def(nb::init<int32_t, int32_t>(), "min_size"_a, "max_size"_a)
      .def_prop_ro("num_tokens", &NgramIndex::num_tokens)
      .def_prop_ro("nbytes", &NgramIndex::nbytes)
      .def("extend", &extend<NgramIndex>, "token_ids"_a.noconvert())
      .def("continuation", &continuation, "max_tokens"_a);
}

}  // namespace blockdraft
