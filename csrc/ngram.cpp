#include "ngram.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "hashing.h"

namespace blockdraft {

NgramIndex::NgramIndex(int32_t min_size, int32_t max_size) : min_size_(min_size), max_size_(max_size) {
  if (min_size < 1 || max_size < min_size || max_size > kMaxNgram) {
    throw std::invalid_argument("sizes are " + std::to_string(min_size) + " to " + std::to_string(max_size) +
                                "; they must be in [1, " + std::to_string(kMaxNgram) + "] and in order");
  }
  tables_.resize(static_cast<size_t>(max_size - min_size + 1));
  for (Table& table : tables_) table.places.resize(16);
  for (size_t i = 0; i < multipliers_.size(); ++i) multipliers_[i] = hash_multiplier(i);
}

size_t NgramIndex::nbytes() const {
  size_t bytes = sizeof(*this) + tokens_.capacity() * sizeof(int32_t) + tables_.capacity() * sizeof(Table);
  for (const Table& table : tables_) bytes += table.places.capacity() * sizeof(uint32_t);
  return bytes;
}

// Calls fn(table index, size, hash) of each n-gram before `place`, the shortest first. The hash is a sum of products with
// random numbers, so the n-grams of a place share its terms.
template <class Fn>
void NgramIndex::each_size(size_t place, Fn fn) const {
  uint64_t hash = 0;
  for (int32_t size = 1; size <= max_size_ && static_cast<size_t>(size) <= place; ++size) {
    hash += multipliers_[static_cast<size_t>(size)] * (static_cast<uint64_t>(tokens_[place - static_cast<size_t>(size)]) + 1);
    if (size >= min_size_) fn(static_cast<size_t>(size - min_size_), size, mixed(hash));
  }
}

void NgramIndex::extend(const int32_t* token_ids, int64_t count) {
  if (count > kMaxNgramTokens - num_tokens()) {
    throw std::invalid_argument(std::to_string(count) + " tokens after " + std::to_string(num_tokens()) + " are more than " +
                                std::to_string(kMaxNgramTokens));
  }
  for (int64_t i = 0; i < count; ++i) {
    const size_t place = tokens_.size();
    tokens_.push_back(token_ids[i]);
    each_size(place, [&](size_t index, int32_t size, uint64_t hash) { put(tables_[index], place, size, hash); });
  }
}

NgramIndex::Match NgramIndex::match() const {
  Match found;
  each_size(tokens_.size(), [&](size_t index, int32_t size, uint64_t hash) {
    const Table& table = tables_[index];
    const uint32_t place = table.places[slot(table, tokens_.size(), size, hash)];
    if (place) found = {size, place};
  });
  return found;
}

size_t NgramIndex::slot(const Table& table, size_t place, int32_t size, uint64_t hash) const {
  const size_t mask = table.places.size() - 1;
  const auto end = tokens_.begin() + static_cast<int64_t>(place);
  size_t i = hash >> (64 - std::countr_zero(table.places.size()));
  for (; table.places[i]; i = (i + 1) & mask) {
    const auto other = tokens_.begin() + table.places[i];
    if (std::equal(end - size, end, other - size)) break;
  }
  return i;
}

void NgramIndex::put(Table& table, size_t place, int32_t size, uint64_t hash) {
  // Three quarters full at most.
  if (table.used == table.places.size() / 4 * 3) grow(table, size);
  uint32_t& found = table.places[slot(table, place, size, hash)];
  table.used += !found;
  found = static_cast<uint32_t>(place);
}

void NgramIndex::grow(Table& table, int32_t size) const {
  Table larger{std::vector<uint32_t>(2 * table.places.size()), table.used};
  for (const uint32_t place : table.places) {
    if (place) larger.places[slot(larger, place, size, hash_before(place, size))] = place;
  }
  table = std::move(larger);
}

uint64_t NgramIndex::hash_before(size_t place, int32_t size) const {
  uint64_t hash = 0;
  for (int32_t i = 1; i <= size; ++i) {
    hash += multipliers_[static_cast<size_t>(i)] * (static_cast<uint64_t>(tokens_[place - static_cast<size_t>(i)]) + 1);
  }
  return mixed(hash);
}

}  // namespace blockdraft
