"""Tensor types of GGML: numbers, names, block sizes, and which of them we hold.

Knows no file and no value; the numbers are GGML's and never change.
"""

from dataclasses import dataclass

__all__ = ["INDEX_TYPES", "SUPPORTED_TYPES", "TypeInfo", "ggml_type_name", "ggml_type_number"]


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """Layout of one supported tensor type.

    Attributes:
        name: GGML's name.
        block_size: Values per block; a row is a whole number of blocks.
        block_bytes: Bytes per block.
    """

    name: str
    block_size: int
    block_bytes: int


SUPPORTED_TYPES: dict[int, TypeInfo] = {
    0: TypeInfo("F32", 1, 4),
    1: TypeInfo("F16", 1, 2),
    2: TypeInfo("Q4_0", 32, 18),
    3: TypeInfo("Q4_1", 32, 20),
    6: TypeInfo("Q5_0", 32, 22),
    7: TypeInfo("Q5_1", 32, 24),
    8: TypeInfo("Q8_0", 32, 34),
    10: TypeInfo("Q2_K", 256, 84),
    11: TypeInfo("Q3_K", 256, 110),
    12: TypeInfo("Q4_K", 256, 144),
    13: TypeInfo("Q5_K", 256, 176),
    14: TypeInfo("Q6_K", 256, 210),
    20: TypeInfo("IQ4_NL", 32, 18),
    23: TypeInfo("IQ4_XS", 256, 136),
    30: TypeInfo("BF16", 1, 2),
    39: TypeInfo("MXFP4", 32, 17),
}

# Types of index tables; they are read, never packed.
INDEX_TYPES: dict[int, TypeInfo] = {
    24: TypeInfo("I8", 1, 1),
    26: TypeInfo("I32", 1, 4),
    27: TypeInfo("I64", 1, 8),
}

# Known only to be refused by name; 4, 5, 31-33 and 36-38 were withdrawn by GGML itself.
_UNSUPPORTED_NAMES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    25: "I16",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    40: "NVFP4",
    41: "Q1_0",
}


def ggml_type_name(number: int) -> str:
    """Name of a tensor type, ``"number 57"`` for one that GGML does not define."""
    info = SUPPORTED_TYPES.get(number) or INDEX_TYPES.get(number)
    return info.name if info else _UNSUPPORTED_NAMES.get(number, f"number {number}")


def ggml_type_number(name: str) -> int:
    """Number of a supported tensor type.

    Raises:
        KeyError: The name is not one of a supported type.
    """
    for number, info in SUPPORTED_TYPES.items():
        if info.name == name:
            return number
    raise KeyError(name)
