// The GGUF tensor types we read and the shape of their packed tiles.
//
// Knows no kernel and no file. Packed layout of a tile of 16 output rows: records of 32 columns,
// ascending; before each 8 records of a type with 256-column super-blocks a header of 16 x f16 d,
// then, where `header_bytes` is 64, 16 x f16 dmin. A record holds the planes of q, then the scales.
// A plane is made of 64-byte vectors: byte r * 4 + i belongs to row r, element i of a quad; quad j
// of a record is its columns 4j .. 4j + 3.
//   plane4 (256 bytes): vector j = 0..3, low nibble quad j, high nibble quad j + 4
//   plane2 (128 bytes): vector j = 0..1, bits 2b and 2b + 1 quad 4j + b
//   plane1 (64 bytes):  bit b quad b
//   plane8 (512 bytes): vector j = 0..7, quad j
// 2 bits = plane2; 3 = plane2, plane1 (bit 2); 4 = plane4; 5 = plane4, plane1 (bit 4); 6 = plane4,
// plane2 (bits 4 and 5); 8 = plane8. Float types: k ascending, 16 rows each, native width.
// Numbers and offsets: docs/numerics.md, section 1.
#pragma once

#include <array>
#include <cstdint>

namespace blockdraft {

inline constexpr int kTileRows = 16;
inline constexpr int kGroupCols = 32;
inline constexpr int kSuperBlockCols = 256;
inline constexpr int kGroupsPerSuperBlock = kSuperBlockCols / kGroupCols;

// Numbers as in the GGUF file.
enum class GGMLType : int {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
  MXFP4 = 39,
};

// What follows the planes of a record, one entry per row and field.
enum class ScaleKind {
  F16,     // f16 s
  F16Min,  // f16 s, f16 z
  E8M0,    // u8 e, s = 2^(e - 128)
  K32,     // i8 sc, s = d * sc
  K32Min,  // u8 sc, u8 m; s = d * sc, z = -(dmin * m)
  K16,     // i8 sc of columns 0-15, i8 sc of columns 16-31
  K16Min,  // u8 sc | m << 4 of columns 0-15, then of columns 16-31
  Float,   // no planes, no scales
};

static constexpr int scale_fields(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::F16:
    case ScaleKind::E8M0:
    case ScaleKind::K32:
      return 1;
    case ScaleKind::Float:
      return 0;
    default:
      return 2;
  }
}

static constexpr int scale_field_bytes(ScaleKind kind) {
  if (kind == ScaleKind::Float) return 0;
  return kind == ScaleKind::F16 || kind == ScaleKind::F16Min ? 2 : 1;
}

static constexpr bool has_super_blocks(ScaleKind kind) {
  return kind == ScaleKind::K32 || kind == ScaleKind::K32Min || kind == ScaleKind::K16 ||
         kind == ScaleKind::K16Min;
}

static constexpr bool has_minimum(ScaleKind kind) {
  return kind == ScaleKind::F16Min || kind == ScaleKind::K32Min || kind == ScaleKind::K16Min;
}

struct Format {
  GGMLType type;
  const char* name;
  int bits;          // of a stored q, or of a float
  bool table;        // the 4 stored bits index a table of int8 values
  ScaleKind scale;
  int log2_offset;   // of o in w = s * (q - o) + z; -1 when o is 0
  int block_cols;    // columns of a GGUF block: 32, 256, or 1 for floats
  int block_bytes;   // bytes of a GGUF block
  int header_bytes;  // of a packed super-block of a tile: 0, 32 (d) or 64 (d, dmin)
  int group_bytes;   // of a packed record of a tile: 32 columns, or 1 for floats

  constexpr bool is_float() const { return scale == ScaleKind::Float; }
  constexpr int plane_bytes() const { return is_float() ? 0 : bits * 2 * kGroupCols; }
  constexpr int group_cols() const { return is_float() ? 1 : kGroupCols; }
  constexpr int offset() const { return log2_offset < 0 ? 0 : 1 << log2_offset; }
};

static constexpr Format make_format(GGMLType type, const char* name, int bits, bool table,
                                    ScaleKind scale, int log2_offset, int block_bytes) {
  Format format{type, name, bits, table, scale, log2_offset, kGroupCols, block_bytes, 0, 0};
  if (format.is_float()) {
    format.block_cols = 1;
    format.group_bytes = kTileRows * block_bytes;
    return format;
  }
  if (has_super_blocks(scale)) {
    format.block_cols = kSuperBlockCols;
    format.header_bytes = kTileRows * (has_minimum(scale) ? 4 : 2);
  }
  format.group_bytes =
      format.plane_bytes() + kTileRows * scale_fields(scale) * scale_field_bytes(scale);
  return format;
}

inline constexpr std::array<Format, 16> kFormats = {
    make_format(GGMLType::F32, "F32", 32, false, ScaleKind::Float, -1, 4),
    make_format(GGMLType::F16, "F16", 16, false, ScaleKind::Float, -1, 2),
    make_format(GGMLType::BF16, "BF16", 16, false, ScaleKind::Float, -1, 2),
    make_format(GGMLType::Q4_0, "Q4_0", 4, false, ScaleKind::F16, 3, 18),
    make_format(GGMLType::Q4_1, "Q4_1", 4, false, ScaleKind::F16Min, -1, 20),
    make_format(GGMLType::Q5_0, "Q5_0", 5, false, ScaleKind::F16, 4, 22),
    make_format(GGMLType::Q5_1, "Q5_1", 5, false, ScaleKind::F16Min, -1, 24),
    make_format(GGMLType::Q8_0, "Q8_0", 8, false, ScaleKind::F16, 7, 34),
    make_format(GGMLType::Q2_K, "Q2_K", 2, false, ScaleKind::K16Min, -1, 84),
    make_format(GGMLType::Q3_K, "Q3_K", 3, false, ScaleKind::K16, 2, 110),
    make_format(GGMLType::Q4_K, "Q4_K", 4, false, ScaleKind::K32Min, -1, 144),
    make_format(GGMLType::Q5_K, "Q5_K", 5, false, ScaleKind::K32Min, -1, 176),
    make_format(GGMLType::Q6_K, "Q6_K", 6, false, ScaleKind::K16, 5, 210),
    make_format(GGMLType::IQ4_NL, "IQ4_NL", 4, true, ScaleKind::F16, 7, 18),
    make_format(GGMLType::IQ4_XS, "IQ4_XS", 4, true, ScaleKind::K32, 7, 136),
    make_format(GGMLType::MXFP4, "MXFP4", 4, true, ScaleKind::E8M0, 7, 17),
};

// The format of a GGUF type number, or null when we cannot read it.
static constexpr const Format* find_format(int ggml_type) {
  for (const Format& format : kFormats) {
    if (static_cast<int>(format.type) == ggml_type) return &format;
  }
  return nullptr;
}

// Values of IQ4_NL and IQ4_XS.
inline constexpr std::array<std::int8_t, 16> kValuesIQ4 = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Values of E2M1, doubled so that they are integers; its scale is halved instead.
inline constexpr std::array<std::int8_t, 16> kValuesMXFP4 = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The table of a format whose `table` is set.
static constexpr const std::array<std::int8_t, 16>& table_values(GGMLType type) {
  return type == GGMLType::MXFP4 ? kValuesMXFP4 : kValuesIQ4;
}

}  // namespace blockdraft
