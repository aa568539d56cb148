// One group of 32 columns out of a GGUF block, for every quantized type.
//
// Knows neither tiles nor planes. `Block<type>::values` gives q (unsigned, not yet centred; for
// table types the index) as 8 words: byte i of word j is column 4j + i. `Block<type>::scales` gives
// the fields that `ScaleKind` lists, `Block<type>::header` the f16 d and dmin of a super-block.
// Source: the block layouts of the GGUF format; test_pack.py compares with the gguf package.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "formats.h"

namespace blockdraft::gguf {

static_assert(std::endian::native == std::endian::little, "words are read as four columns");

using std::uint8_t;
using std::uint16_t;
using std::uint32_t;

// Up to two numbers per row; signed bytes are kept as their bit pattern.
struct Fields {
  uint16_t first = 0;
  uint16_t second = 0;
};

inline uint16_t load16(const uint8_t* bytes) {
  uint16_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

inline uint32_t load32(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// 16 bytes: low nibbles are columns 0-15, high nibbles columns 16-31.
inline void split_nibbles(const uint8_t* bytes, uint32_t* q) {
  for (int j = 0; j < 4; ++j) {
    const uint32_t word = load32(bytes + 4 * j);
    q[j] = word & 0x0f0f0f0fu;
    q[j + 4] = (word >> 4) & 0x0f0f0f0fu;
  }
}

// 32 bytes: one field per column, `shift` bits up.
inline void take_bits(const uint8_t* bytes, int shift, uint32_t mask, uint32_t* q) {
  for (int j = 0; j < 8; ++j) q[j] = (load32(bytes + 4 * j) >> shift) & mask;
}

// 32 bytes: the field goes to bit `to` of what is there.
inline void add_bits(const uint8_t* bytes, int shift, uint32_t mask, int to, uint32_t* q) {
  for (int j = 0; j < 8; ++j) q[j] |= ((load32(bytes + 4 * j) >> shift) & mask) << to;
}

// Bit c of `bits` is bit 4 of column c. The product moves bits 0..3 to bits 0, 8, 16, 24.
inline void add_fifth_bits(uint32_t bits, uint32_t* q) {
  for (int j = 0; j < 8; ++j) {
    q[j] |= ((((bits >> (4 * j)) & 15u) * 0x00204081u) & 0x01010101u) << 4;
  }
}

// The 6-bit sc and m of Q4_K and Q5_K: eight of each in 12 bytes.
inline Fields six_bit_scales(const uint8_t* bytes, int group) {
  if (group < 4) {
    return {static_cast<uint16_t>(bytes[group] & 63), static_cast<uint16_t>(bytes[group + 4] & 63)};
  }
  const int low = bytes[group + 4];
  return {static_cast<uint16_t>((low & 15) | ((bytes[group - 4] >> 6) << 4)),
          static_cast<uint16_t>((low >> 4) | ((bytes[group] >> 6) << 4))};
}

// The 6-bit scales of Q3_K, centred: sixteen in 12 bytes.
inline uint16_t q3_scale(const uint8_t* bytes, int half) {
  const int low = half < 8 ? bytes[half] & 15 : bytes[half - 8] >> 4;
  const int high = (bytes[8 + half % 4] >> (2 * (half / 4))) & 3;
  return static_cast<uint8_t>((low | (high << 4)) - 32);
}

template <GGMLType type>
struct Block;

template <>
struct Block<GGMLType::Q4_0> {
  static void values(const uint8_t* block, int, uint32_t* q) { split_nibbles(block + 2, q); }
  static Fields scales(const uint8_t* block, int) { return {load16(block)}; }
};

template <>
struct Block<GGMLType::IQ4_NL> : Block<GGMLType::Q4_0> {};

template <>
struct Block<GGMLType::MXFP4> {
  static void values(const uint8_t* block, int, uint32_t* q) { split_nibbles(block + 1, q); }
  static Fields scales(const uint8_t* block, int) { return {block[0]}; }
};

template <>
struct Block<GGMLType::Q4_1> {
  static void values(const uint8_t* block, int, uint32_t* q) { split_nibbles(block + 4, q); }
  static Fields scales(const uint8_t* block, int) { return {load16(block), load16(block + 2)}; }
};

template <>
struct Block<GGMLType::Q5_0> {
  static void values(const uint8_t* block, int, uint32_t* q) {
    split_nibbles(block + 6, q);
    add_fifth_bits(load32(block + 2), q);
  }
  static Fields scales(const uint8_t* block, int) { return {load16(block)}; }
};

template <>
struct Block<GGMLType::Q5_1> {
  static void values(const uint8_t* block, int, uint32_t* q) {
    split_nibbles(block + 8, q);
    add_fifth_bits(load32(block + 4), q);
  }
  static Fields scales(const uint8_t* block, int) { return {load16(block), load16(block + 2)}; }
};

template <>
struct Block<GGMLType::Q8_0> {
  static void values(const uint8_t* block, int, uint32_t* q) {
    // Adding 128 to a signed byte flips its sign bit.
    for (int j = 0; j < 8; ++j) q[j] = load32(block + 2 + 4 * j) ^ 0x80808080u;
  }
  static Fields scales(const uint8_t* block, int) { return {load16(block)}; }
};

template <>
struct Block<GGMLType::Q2_K> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    take_bits(block + 16 + 32 * (group / 4), 2 * (group % 4), 0x03030303u, q);
  }
  static Fields scales(const uint8_t* block, int group) {
    return {block[2 * group], block[2 * group + 1]};
  }
  static Fields header(const uint8_t* block) { return {load16(block + 80), load16(block + 82)}; }
};

template <>
struct Block<GGMLType::Q3_K> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    take_bits(block + 32 + 32 * (group / 4), 2 * (group % 4), 0x03030303u, q);
    add_bits(block, group, 0x01010101u, 2, q);
  }
  static Fields scales(const uint8_t* block, int group) {
    return {q3_scale(block + 96, 2 * group), q3_scale(block + 96, 2 * group + 1)};
  }
  static Fields header(const uint8_t* block) { return {load16(block + 108)}; }
};

template <>
struct Block<GGMLType::Q4_K> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    take_bits(block + 16 + 32 * (group / 2), 4 * (group % 2), 0x0f0f0f0fu, q);
  }
  static Fields scales(const uint8_t* block, int group) { return six_bit_scales(block + 4, group); }
  static Fields header(const uint8_t* block) { return {load16(block), load16(block + 2)}; }
};

template <>
struct Block<GGMLType::Q5_K> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    take_bits(block + 48 + 32 * (group / 2), 4 * (group % 2), 0x0f0f0f0fu, q);
    add_bits(block + 16, group, 0x01010101u, 4, q);
  }
  static Fields scales(const uint8_t* block, int group) { return six_bit_scales(block + 4, group); }
  static Fields header(const uint8_t* block) { return {load16(block), load16(block + 2)}; }
};

template <>
struct Block<GGMLType::Q6_K> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    const int half = group / 4;  // 128 columns: 64 bytes of nibbles, 32 bytes of bit pairs
    const int part = group % 4;
    take_bits(block + 64 * half + 32 * (part % 2), 4 * (part / 2), 0x0f0f0f0fu, q);
    add_bits(block + 128 + 32 * half, 2 * part, 0x03030303u, 4, q);
  }
  static Fields scales(const uint8_t* block, int group) {
    return {block[192 + 2 * group], block[193 + 2 * group]};
  }
  static Fields header(const uint8_t* block) { return {load16(block + 208)}; }
};

template <>
struct Block<GGMLType::IQ4_XS> {
  static void values(const uint8_t* block, int group, uint32_t* q) {
    split_nibbles(block + 8 + 16 * group, q);
  }
  static Fields scales(const uint8_t* block, int group) {
    const int low = (block[4 + group / 2] >> (4 * (group % 2))) & 15;
    const int high = (load16(block + 2) >> (2 * group)) & 3;
    return {static_cast<uint8_t>((low | (high << 4)) - 32)};
  }
  static Fields header(const uint8_t* block) { return {load16(block)}; }
};

}  // namespace blockdraft::gguf
