// A weight matrix in the packed layout of formats.h, built from GGUF blocks.
//
// Knows no kernel, no thread pool and no file. Holds its types exactly: no value is rounded here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "formats.h"

namespace blockdraft {

class Matrix {
 public:
  // A matrix of zero bytes. Throws std::invalid_argument when the type is unknown, when the columns
  // do not fit its blocks, or when a size is not positive or too large.
  Matrix(int ggml_type, std::int64_t rows, std::int64_t cols);

  // Packs whole rows, in GGUF block layout, from `row_start` (a multiple of 16) on. Only the last
  // rows of the matrix may fill a tile in part. Calls for disjoint rows may run at the same time.
  // Throws std::invalid_argument when the rows do not fit, or on a scale or float that is not
  // finite; then the rows of this call are undefined.
  void pack(std::int64_t row_start, const std::uint8_t* data, std::size_t nbytes);

  // Writes rows [row_start, row_start + count) to out [count, cols]: fma(s, q - o, z).
  void dequantize(std::int64_t row_start, std::int64_t count, float* out) const;

  const Format& format() const { return *format_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t tiles() const { return tiles_; }
  std::size_t tile_bytes() const { return tile_bytes_; }
  std::size_t nbytes() const { return tile_bytes_ * static_cast<std::size_t>(tiles_); }
  const std::uint8_t* tile(std::int64_t index) const {
    return data_ + tile_bytes_ * static_cast<std::size_t>(index);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  const Format* format_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t tiles_;
  std::size_t row_bytes_;   // of a GGUF row
  std::size_t tile_bytes_;  // of a packed tile
  std::unique_ptr<void, Free> memory_;
  std::uint8_t* data_;  // in memory_, 64-byte aligned
};

}  // namespace blockdraft
