"""Small wrong changes of the native core that the tests of bit identity must notice.

Data only; `scripts/mutants` builds and tests each. A search text must occur exactly once in its
file, so that a mutant cannot rot unseen.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTANTS", "Edit", "Mutant"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file of ``csrc``."""

    file: str
    search: str
    replace: str

    def apply(self, folder: Path) -> None:
        """Change the file below ``folder``.

        Raises:
            ValueError: The search text is not there exactly once.
        """
        path = folder / self.file
        text = path.read_text()
        found = text.count(self.search)
        if found != 1:
            raise ValueError(f"{path} has {found} times, not once:\n{self.search}")
        path.write_text(text.replace(self.search, self.replace))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A named change; ``about`` says which promise it breaks.

    ``isa`` is the instruction set that it changes alone; a machine without it cannot tell.
    """

    name: str
    about: str
    edits: tuple[Edit, ...]
    isa: str | None = None


MATMUL, ATTENTION = "matmul.inl", "attention.inl"

_ONE_SCALE = (
    "            sum = fma(to_float(a), mul(s.s0, xs), sum);\n"
    "            if constexpr (has_minimum(F.scale)) sum = fma(s.z0, part_set1(info[m].f), sum);\n"
)


def _size_switch(condition: str) -> tuple[Edit, ...]:
    two_roundings = "sum = fma(part_set1(1.0f), mul(mul(s.s0, xs), to_float(a)), sum);"
    branch = f"            if ({condition}) {two_roundings}\n            else\n"
    return (Edit(MATMUL, _ONE_SCALE, branch + _ONE_SCALE),)


_SPLIT_K_OF_ONE_ROW = (
    Edit(
        MATMUL,
        "  pf sums[kParts][T][MB] = {};\n",
        "  pf sums[kParts][T][MB] = {};\n  pf held[kParts][T] = {};\n",
    ),
    Edit(
        MATMUL,
        "    w += skip;\n",
        "    w += skip;\n"
        "    for (int t = 0; MB == 1 && g == groups / 2 && t < T; ++t)\n"
        "      for (int p = 0; p < kParts; ++p)\n"
        "        held[p][t] = sums[p][t][0], sums[p][t][0] = part_set1(0.0f);\n",
    ),
    Edit(
        MATMUL,
        "set_part(acc[t * MB + m], p, sums[p][t][m]);",
        "set_part(acc[t * MB + m], p, fma(part_set1(1.0f), held[p][t], sums[p][t][m]));",
    ),
)

_SPLIT_K_EVERYWHERE = (
    Edit(
        MATMUL,
        "  for (int64_t k = 0; k < cols; ++k) {\n",
        "  for (int64_t k = 0; k < cols; ++k) {\n"
        "    if (k == cols / 2)\n"
        "      for (int m = 0; m < MB; ++m) acc[m] = sum[m], sum[m] = zero();\n",
    ),
    Edit(
        MATMUL,
        "acc[m] = sum[m];\n}\n\ninline void store_tile",
        "acc[m] = add(acc[m], sum[m]);\n}\n\ninline void store_tile",
    ),
)

# Chunks end where the first row of a unit ends; they are gathered, since they straddle pages.
_CHUNKS_FROM_QUERY = (
    Edit(
        "attention.cpp",
        "  // Keys of a chunk as `row` sees them;",
        """\
  int64_t shift(int64_t row) const { return (kChunk - view(row).high % kChunk) % kChunk; }

  const uint16_t* shifted(int64_t row, int64_t index, uint16_t* scratch) const {
    const int64_t sequence = layout.sequence[row], base = batch.base_lengths[sequence];
    const int64_t start = index * kChunk - shift(row), head_dim = spec.head_dim;
    const auto& path = layout.ancestors[row];
    const bool chain = layout.chain[sequence];
    int64_t rows = static_cast<int64_t>(path.size());
    if (chain) rows = batch.row_starts[sequence + 1] - batch.row_starts[sequence];
    const int64_t end = std::min<int64_t>(start + kChunk, base + rows);
    std::memset(scratch, 0, static_cast<size_t>(head_page_halfs(spec.head_dim)) * 2);
    for (int64_t position = std::max(start, view(row).low); position < end; ++position) {
      const int64_t slot = chain || position < base ? position : path[position - base];
      const uint16_t* from = page(sequence, slot / kChunk);
      const int64_t s = slot % kChunk, p = position - start;
      for (int64_t d = 0; d < head_dim; ++d) {
        scratch[d * kChunk + p] = from[d * kChunk + s];
        scratch[(kChunk + p) * head_dim + d] = from[(kChunk + s) * head_dim + d];
      }
    }
    return scratch;
  }

  // Keys of a chunk as `row` sees them;""",
    ),
    Edit(
        "attention.cpp",
        "const int64_t first = pages.view(row).low / kChunk;",
        "const int64_t first = (pages.view(row).low + pages.shift(row)) / kChunk;",
    ),
    Edit(
        "attention.cpp",
        "(pages.view(row + count - 1).high + kChunk - 1) / kChunk;",
        "(pages.view(row + count - 1).high + pages.shift(row) + kChunk - 1) / kChunk;",
    ),
    Edit(
        "attention.cpp",
        "pages.chunk(unit.first_row, c, gather);",
        "pages.shifted(unit.first_row, c, gather);\n"
        "    const int64_t start = c * kChunk - pages.shift(unit.first_row);",
    ),
    Edit(
        "attention.cpp",
        "const int64_t low = std::max<int64_t>(0, view.low - c * kChunk), "
        "high = std::min<int64_t>(kChunk, view.high - c * kChunk);",
        "const int64_t low = std::max<int64_t>(0, view.low - start), "
        "high = std::min<int64_t>(kChunk, view.high - start);",
    ),
)

# Scores of the rows of the pass from the keys as they were before they were stored.
_KEYS_FROM_REGISTERS = (
    Edit(
        "kernels.h",
        "  float softcap;  // 0: none\n",
        "  float softcap;  // 0: none\n  const float* fresh;\n  int64_t fresh_stride;\n"
        "  int fresh_from, fresh_to;\n",
    ),
    Edit(
        "attention.cpp",
        "    args.head_dim = head_dim, args.softcap = spec.softcap;\n",
        """\
    args.head_dim = head_dim, args.softcap = spec.softcap;
    if (layout_.chain[unit.sequence]) {
      const int64_t row = batch.row_starts[unit.sequence], base = batch.base_lengths[unit.sequence];
      const int64_t rows = batch.row_starts[unit.sequence + 1] - row;
      const int64_t from = std::max<int64_t>(base - c * kChunk, 0);
      args.fresh_from = static_cast<int>(from);
      args.fresh_to = static_cast<int>(std::min<int64_t>(kChunk, base + rows - c * kChunk));
      args.fresh_stride = stride(spec.k);
      args.fresh = data(spec.k) + (row + c * kChunk + from - base) * stride(spec.k);
      args.fresh += unit.kv_head * head_dim;
    }
""",
    ),
    Edit(
        ATTENTION,
        "    for (int j = computed; j < kChunk; ++j) s[i * kChunk + j] = 0.0f;\n",
        """\
    for (int j = args.fresh_from; j < args.fresh_to && j < computed; ++j) {
      const float* k = args.fresh + (j - args.fresh_from) * args.fresh_stride;
      float acc = 0.0f;
      for (int d = 0; d < args.head_dim; ++d) acc = std::fmaf(args.query[i][d], k[d], acc);
      s[i * kChunk + j] = acc;
    }
    for (int j = computed; j < kChunk; ++j) s[i * kChunk + j] = 0.0f;
""",
    ),
)

_SHARED_MAXIMUM = (
    Edit(
        ATTENTION,
        "float softcap, Partial& partial) {",
        "float softcap, Partial& partial, const Partial* shared) {",
    ),
    Edit(
        ATTENTION,
        "  partial.max = fold_max(max);\n",
        "  partial.max = fold_max(max);\n"
        "  if (shared && shared->max > partial.max) partial.max = shared->max;\n",
    ),
    Edit(
        ATTENTION,
        "args.softcap, partials[i]);",
        "args.softcap, partials[i], i > 0 ? &partials[i - 1] : nullptr);",
    ),
)

_HALF_CHUNKS_FOR_WINDOWS = (
    Edit(
        "attention.cpp",
        "    for (int64_t i = 0; i < queries; ++i) {\n      const View view",
        "    for (int64_t part = 0; part < (spec.windowed_pages ? 2 : 1); ++part)\n"
        "    for (int64_t i = 0; i < queries; ++i) {\n      const View view",
    ),
    Edit(
        "attention.cpp",
        "      if (low >= high) continue;\n      const int n = args.num_queries++;\n",
        """\
      const int64_t cut = spec.windowed_pages ? kChunk / 2 : kChunk;
      if (std::max(low, part * cut) >= std::min(high, (part + 1) * cut)) continue;
      const int n = args.num_queries++;
""",
    ),
    Edit(
        "attention.cpp",
        "args.low[n] = static_cast<int>(low), args.high[n] = static_cast<int>(high);",
        "args.low[n] = static_cast<int>(std::max(low, part * cut)), "
        "args.high[n] = static_cast<int>(std::min(high, (part + 1) * cut));",
    ),
)

MUTANTS = (
    Mutant("size-switch", "a kernel of 8 rows rounds otherwise", _size_switch("MB >= 8")),
    Mutant("tile-switch", "tiles side by side round otherwise", _size_switch("T > 1"), "avx512"),
    Mutant("split-k-of-one-row", "a row on its own is summed in two parts", _SPLIT_K_OF_ONE_ROW),
    Mutant("split-k-everywhere", "every float product in two parts", _SPLIT_K_EVERYWHERE),
    Mutant("chunks-from-query", "attention chunks relative to the query", _CHUNKS_FROM_QUERY),
    Mutant("keys-from-registers", "keys of the pass not read from storage", _KEYS_FROM_REGISTERS),
    Mutant("shared-maximum", "queries of a block share a maximum", _SHARED_MAXIMUM),
    Mutant("half-chunks-for-windows", "windowed layers in chunks of 32", _HALF_CHUNKS_FOR_WINDOWS),
    Mutant(
        "split-merge-order",
        "split attention merges its chunks backwards",
        (
            Edit(
                "attention.cpp",
                "c < unit.last_chunk; ++c) {\n        Partial& partial = partials_[unit.partials "
                "+ (c - unit.first_chunk) * queries + i];",
                "c < unit.last_chunk; ++c) {\n        Partial& partial = partials_[unit.partials "
                "+ (unit.last_chunk - 1 - c) * queries + i];",
            ),
        ),
    ),
    Mutant(
        "softmax-sum-order",
        "softmax sums in position order, not in 16 lanes",
        (
            Edit(
                ATTENTION,
                "  partial.sum = fold(sum);\n",
                "  partial.sum = 0.0f;\n  for (int j = 0; j < kChunk; ++j) partial.sum += s[j];\n",
            ),
        ),
    ),
    Mutant(
        "lanes-by-width",
        "the lanes of a norm fold by the vector width",
        (
            Edit(
                "simd.h",
                "const __m256 s = _mm256_add_ps(x.a, x.b);",
                "const __m256 s = _mm256_hadd_ps(x.a, x.b);",
            ),
        ),
    ),
    Mutant(
        "unsaturated-f16",
        "keys and values beyond float16 become infinite",
        (
            Edit(
                "simd.h",
                "store_half(p, vmax(vmin(x, limit), sub(zero(), limit)));",
                "store_half(p, mul(x, div(limit, limit)));",
            ),
        ),
    ),
    Mutant(
        "shared-scale",
        "rows of a block share the scale of the first",
        (Edit(MATMUL, "set1(info[m].scale);", "set1(info[0].scale);"),),
    ),
    Mutant(
        "narrow-sums",
        "16-bit sums of 5-bit weights that overflow at the extremes",
        (Edit("quads.inl", "F.bits == 5 ? 4 : 2;", "F.bits == 5 ? 8 : 2;"),),
    ),
    Mutant(
        "angles-in-binary32",
        "rotary angles rounded too early",
        (
            Edit(
                "plan.cpp",
                "cos_sin(batch.positions[row] * table.inverse_frequencies[i]);",
                "cos_sin(static_cast<float>(batch.positions[row] * table.inverse_frequencies[i]));",
            ),
        ),
    ),
    Mutant(
        "siblings-as-ancestors",
        "a row of a tree takes slots for positions",
        (
            Edit(
                "attention.cpp",
                "position < base ? position : path[position - base];",
                "position < base ? position : std::min<int64_t>(position, path[position - base]);",
            ),
        ),
    ),
    Mutant(
        "tree-in-border-chunk",
        "a tree that starts inside a chunk reads it as a chain would",
        (Edit("attention.cpp", "(index + 1) * kChunk <= base)", "index * kChunk < base)"),),
    ),
    Mutant(
        "values-stay-behind",
        "a commit of scattered rows moves keys only",
        (
            Edit(
                "attention.cpp",
                "source + values + from % kChunk * head_dim,",
                "source + values + to % kChunk * head_dim,",
            ),
        ),
    ),
    Mutant(
        "wide-gate-part",
        "a gate cut over threads loses its last group of columns",
        (
            Edit(
                "plan.cpp",
                "groups * part / parts, groups * (part + 1) / parts);",
                "groups * part / parts, groups * (part + 1) / parts - (part + 1 == parts));",
            ),
        ),
    ),
)
