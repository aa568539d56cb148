// Conversions between binary32 and the 16-bit floats, in integer arithmetic.
//
// Exact towards binary32; from it to nearest even (overflow to infinity, NaN stays NaN). No
// intrinsics, so that every instruction set path and every compiler gives the same bits. Internal
// linkage: a copy that was compiled for one instruction set must not serve the others.
#pragma once

#include <bit>
#include <cstdint>

namespace blockdraft {

static inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
  // Normal numbers: the exponent bias grows from 15 to 127. Below: an integer times 2^-24, exact.
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(tiny));
}

static inline std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and up
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14 and up; a carry steps the exponent
    half = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude < 0x33000000u) {  // below half of the smallest subnormal
    half = 0;
  } else {
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14..24
    const std::uint32_t floor = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t tie = 1u << (shift - 1u);
    half = floor + ((rest > tie || (rest == tie && (floor & 1u))) ? 1u : 0u);
  }
  return static_cast<std::uint16_t>(sign | half);
}

static inline bool f16_is_finite(std::uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

static inline float bf16_to_f32(std::uint16_t brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain) << 16);
}

static inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline bool bf16_is_finite(std::uint16_t brain) { return (brain & 0x7f80u) != 0x7f80u; }

}  // namespace blockdraft
