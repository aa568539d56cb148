// An array that grows by pages: nothing is ever copied, and what is held in reserve is less than one page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace blockdraft {

// References stay valid while it grows.
template <class T>
class Pages {
 public:
  T& operator[](uint32_t index) { return pages_[index / kEntries][index % kEntries]; }
  const T& operator[](uint32_t index) const { return pages_[index / kEntries][index % kEntries]; }
  uint32_t size() const { return size_; }
  size_t nbytes() const { return pages_.size() * kEntries * sizeof(T) + pages_.capacity() * sizeof(pages_[0]); }

  // The index of a new entry.
  uint32_t add(const T& value) {
    if (size_ % kEntries == 0) pages_.push_back(std::make_unique<T[]>(kEntries));
    (*this)[size_] = value;
    return size_++;
  }

 private:
  static constexpr uint32_t kEntries = 64;
  std::vector<std::unique_ptr<T[]>> pages_;
  uint32_t size_ = 0;
};

}  // namespace blockdraft
