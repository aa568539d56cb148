// The q of one record, 16 rows x 32 columns, in and out of the bit planes of formats.h.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "formats.h"

namespace blockdraft::planes {

using std::uint32_t;
using std::uint8_t;

inline constexpr int kQuads = kGroupCols / 4;
inline constexpr int kVectorBytes = kTileRows * 4;

// The q of one record: word [j][r] is quad j of row r.
using Quads = std::array<std::array<uint32_t, kTileRows>, kQuads>;
using Vector = std::array<uint32_t, kTileRows>;

// `fields` quads share a vector, `width` bits each: vector j holds quads j * step + b * stride.
template <int vectors, int fields, int width, int step, int stride>
void put_plane(const Quads& q, int shift, uint8_t* out) {
  constexpr uint32_t mask = 0x01010101u * ((1u << width) - 1u);
  for (int j = 0; j < vectors; ++j) {
    Vector vector{};
    for (int b = 0; b < fields; ++b) {
      for (int r = 0; r < kTileRows; ++r) {
        vector[r] |= ((q[j * step + b * stride][r] >> shift) & mask) << (b * width);
      }
    }
    std::memcpy(out + j * kVectorBytes, vector.data(), kVectorBytes);
  }
}

template <int vectors, int fields, int width, int step, int stride>
void get_plane(const uint8_t* in, int shift, Quads& q) {
  constexpr uint32_t mask = 0x01010101u * ((1u << width) - 1u);
  for (int j = 0; j < vectors; ++j) {
    Vector vector;
    std::memcpy(vector.data(), in + j * kVectorBytes, kVectorBytes);
    for (int b = 0; b < fields; ++b) {
      for (int r = 0; r < kTileRows; ++r) {
        q[j * step + b * stride][r] |= ((vector[r] >> (b * width)) & mask) << shift;
      }
    }
  }
}

template <int bits>
void put_planes(const Quads& q, uint8_t* out) {
  if constexpr (bits == 8) put_plane<8, 1, 8, 1, 0>(q, 0, out);
  if constexpr (bits == 4 || bits == 5 || bits == 6) put_plane<4, 2, 4, 1, 4>(q, 0, out);
  if constexpr (bits == 2 || bits == 3) put_plane<2, 4, 2, 4, 1>(q, 0, out);
  if constexpr (bits == 3) put_plane<1, 8, 1, 0, 1>(q, 2, out + 2 * kVectorBytes);
  if constexpr (bits == 5) put_plane<1, 8, 1, 0, 1>(q, 4, out + 4 * kVectorBytes);
  if constexpr (bits == 6) put_plane<2, 4, 2, 4, 1>(q, 4, out + 4 * kVectorBytes);
}

template <int bits>
void get_planes(const uint8_t* in, Quads& q) {
  q = Quads{};
  if constexpr (bits == 8) get_plane<8, 1, 8, 1, 0>(in, 0, q);
  if constexpr (bits == 4 || bits == 5 || bits == 6) get_plane<4, 2, 4, 1, 4>(in, 0, q);
  if constexpr (bits == 2 || bits == 3) get_plane<2, 4, 2, 4, 1>(in, 0, q);
  if constexpr (bits == 3) get_plane<1, 8, 1, 0, 1>(in + 2 * kVectorBytes, 2, q);
  if constexpr (bits == 5) get_plane<1, 8, 1, 0, 1>(in + 4 * kVectorBytes, 4, q);
  if constexpr (bits == 6) get_plane<2, 4, 2, 4, 1>(in + 4 * kVectorBytes, 4, q);
}

}  // namespace blockdraft::planes
