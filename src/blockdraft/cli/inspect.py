"""Show what is in a model file and the memory it needs, with -md also what a drafter adds.

No weight is loaded.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from blockdraft.cli.options import AUTO, NONE, add_drafter_option, cache_dir
from blockdraft.cli.parser import Parser, at_least
from blockdraft.cli.terminal import find_model
from blockdraft.config import DraftConfig, DrafterConfig, ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout
from blockdraft.models.target import MAX_ROWS
from blockdraft.session.drafting import most_drafts, open_drafter, settle
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.gguf import GGUFFile, StringArray, ggml_type_name
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import packed_bytes

__all__ = ["add_arguments", "describe", "run"]

_SPECIAL_IDS = ("bos", "eos", "eot", "unknown", "padding")


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft inspect``."""
    parser.add_argument(
        "model", metavar="FILE", help="a GGUF file, a name from 'blockdraft models', or hf:..."
    )
    add_drafter_option(parser)
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=at_least(1),
        metavar="N",
        help="tokens to give the memory for (default: what the model was trained for)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the description.

    Raises:
        BlockdraftError: A file cannot be found or read, is not of a supported kind, or the drafter
            does not fit the model.
    """
    drafter = None if args.model_draft == NONE else args.model_draft
    info = describe(find_model(args.model), args.ctx_size, drafter)
    if args.json:
        print(json.dumps(info))
    else:
        print("\n".join(_lines(info)))
    return 0


def describe(path: Path, ctx_size: int | None, drafter: str | None = None) -> dict[str, Any]:
    """What is in a model file, as JSON-ready objects.

    Args:
        path: The model.
        ctx_size: Tokens to give the memory for; None is what the model was trained for.
        drafter: A drafter's file, folder or ``hf:`` spec, or "auto"; its own memory is under
            ``drafter``.

    Raises:
        ConfigError: ``ctx_size`` is more than the model was trained for, or the drafter is not
            there or was made for another model.
        FileFormatError: A file is damaged.
        UnsupportedError: A file asks for what we do not have.
    """
    with GGUFFile.open(path) as file:
        config = read_model_config(file)
        context = config.context_length if ctx_size is None else ctx_size
        if context > config.context_length:
            raise ConfigError(
                f"--ctx-size is {context}; {path} was trained for {config.context_length} tokens"
            )
        info = {
            "file": str(path),
            "file_bytes": path.stat().st_size,
            "architecture": config.architecture,
            "name": config.name,
            "parameters": sum(info.rows * info.cols for info in file.tensors.values()),
            "layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "ffn_size": config.ffn_size,
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "context_length": config.context_length,
            "window": config.window,
            "windowed_layers": sum(config.windowed_layers),
            "tied_head": config.tied_head,
            "tensors": _tensor_mix(file),
            "memory": _memory(file, config, context),
            "tokenizer": _tokenizer(file),
        }
        if drafter is not None:
            asked = settle(DraftConfig("dflash", None if drafter == AUTO else drafter), path)
            with open_drafter(asked, file, cache_dir=cache_dir()) as drafter_file:
                assert isinstance(drafter_file, DrafterFile)
                num_drafts = most_drafts(asked, drafter_file.config)
                info["drafter"] = _describe_drafter(drafter_file, context, num_drafts)
        return info


def _describe_drafter(file: DrafterFile, context: int, num_drafts: int) -> dict[str, Any]:
    config = file.config
    return {
        "file": str(file.path),
        "type": "dflash" if config.selector is None else "dflash2",
        "name": config.name,
        "parameters": sum(info.rows * info.cols for info in file.tensors.values()),
        "layers": config.num_layers,
        "block_size": config.block_size,
        "target_layers": list(config.target_layer_ids),
        "window": config.window,
        "windowed_layers": sum(config.windowed_layers),
        "own_embedding": config.own_embedding,
        "own_head": config.own_head,
        "memory": _drafter_memory(file, context, num_drafts),
    }


def _tensor_mix(file: GGUFFile) -> list[dict[str, Any]]:
    """Count, bytes and share of bytes of every tensor type, the largest first."""
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for info in file.tensors.values():
        counts[info.ggml_type] += 1
        sizes[info.ggml_type] += info.nbytes
    total = max(sum(sizes.values()), 1)
    return [
        {
            "type": ggml_type_name(number),
            "tensors": counts[number],
            "bytes": size,
            "share": size / total,
        }
        for number, size in sizes.most_common()
    ]


def _memory(file: GGUFFile, config: ModelConfig, context: int) -> dict[str, int]:
    layout = KVLayout.from_config(config)
    heads = config.num_heads + config.num_kv_heads
    columns = 2 * (config.hidden_size + heads * config.head_dim + config.ffn_size)
    return {
        "weight_bytes": packed_bytes(file),
        "kv_bytes_per_token": layout.bytes_per_token,
        "context": context,
        "kv_bytes": layout.max_bytes(context, rows_per_pass=MAX_ROWS),
        "workspace_bytes": 4 * (MAX_ROWS * columns + config.vocab_size),
    }


def _drafter_memory(file: DrafterFile, context: int, num_drafts: int) -> dict[str, int]:
    """What a drafter adds; embedding and head count only where the file has its own.

    Args:
        file: The drafter.
        context: Tokens of the context.
        num_drafts: The most drafts of a round, which are more than a block's where they are a tree.
    """
    config = file.config
    layout = KVLayout.from_config(config)
    floats = MAX_ROWS * (_injection_columns(config) + _block_columns(config))
    # Only rows of drafts have logits: the drafter's own, and the target's of those it verifies.
    floats += (config.block_size - 1) * config.head_size + num_drafts * config.vocab_size
    return {
        "weight_bytes": packed_bytes(file),
        "kv_bytes_per_token": layout.bytes_per_token,
        "context": context,
        "kv_bytes": layout.max_bytes(context + num_drafts, rows_per_pass=MAX_ROWS),
        "workspace_bytes": 4 * floats,
    }


def _injection_columns(config: DrafterConfig) -> int:
    """Floats of a row of target features on its way into the cache; the target keeps a copy."""
    keys_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return 2 * config.feature_size + config.hidden_size + keys_values


def _block_columns(config: DrafterConfig) -> int:
    """Floats of a row of a block."""
    heads = config.num_heads + config.num_kv_heads
    columns = 2 * (config.hidden_size + heads * config.head_dim + config.ffn_size)
    if config.conv is not None:
        kernels = 2 * config.conv.kernel_size * (config.hidden_size // config.conv.group_size)
        columns += config.hidden_size + kernels
    if config.selector is not None:
        columns += config.selector.rank + config.selector.top_k**2
    return columns


def _tokenizer(file: GGUFFile) -> dict[str, Any]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    special = {}
    for name in _SPECIAL_IDS:
        token_id = file.get_int(f"tokenizer.ggml.{name}_token_id", None)
        if token_id is not None:
            special[name] = token_id
    return {
        "kind": file.get_str("tokenizer.ggml.model", ""),
        "pre": file.get_str("tokenizer.ggml.pre", ""),
        "vocab_size": len(tokens) if isinstance(tokens, StringArray) else 0,
        "special_ids": special,
        "chat_template": "tokenizer.chat_template" in file.metadata,
    }


def _lines(info: dict[str, Any]) -> list[str]:
    memory, tokenizer = info["memory"], info["tokenizer"]
    rows = [
        ("file", f"{info['file']} ({_size(info['file_bytes'])})"),
        ("architecture", info["architecture"] + (f" ({info['name']})" if info["name"] else "")),
        ("parameters", f"{info['parameters'] / 1e6:.1f} million"),
        (
            "layers",
            f"{info['layers']}, hidden size {info['hidden_size']}, feed-forward {info['ffn_size']}",
        ),
        ("heads", f"{info['heads']} query, {info['kv_heads']} K/V, {info['head_dim']} wide"),
        ("head", "the embedding table" if info["tied_head"] else "its own matrix"),
        ("context", f"{info['context_length']} tokens"),
    ]
    if info["window"] is not None:
        rows.append(("window", f"{info['window']} tokens in {info['windowed_layers']} layers"))
    for kind in info["tensors"]:
        amount = f"{kind['tensors']} tensors, {_size(kind['bytes'])}, {100 * kind['share']:.1f} %"
        rows.append((f"  {kind['type']}", amount))
    total = memory["weight_bytes"] + memory["kv_bytes"] + memory["workspace_bytes"]
    rows += [
        ("weights", f"{_size(memory['weight_bytes'])} packed"),
        (
            "K/V",
            f"{memory['kv_bytes_per_token'] / 1024:.1f} KiB per token,"
            f" {_size(memory['kv_bytes'])} at {memory['context']} tokens",
        ),
        ("workspace", f"about {_size(memory['workspace_bytes'])}"),
        ("memory", f"about {_size(total)} in all"),
        (
            "tokenizer",
            f"{tokenizer['kind'] or 'none'}, pre-tokenizer {tokenizer['pre'] or 'unnamed'},"
            f" {tokenizer['vocab_size']} tokens",
        ),
        ("special ids", ", ".join(f"{k} {v}" for k, v in tokenizer["special_ids"].items())),
        ("chat template", "yes" if tokenizer["chat_template"] else "no"),
    ]
    if "drafter" in info:
        rows += _drafter_rows(info["drafter"], total)
    return [f"{label:<15}{text}" for label, text in rows]


def _drafter_rows(drafter: dict[str, Any], target_bytes: int) -> list[tuple[str, str]]:
    """What a drafter is and adds, for people; ``target_bytes`` is the memory without it."""
    memory = drafter["memory"]
    total = memory["weight_bytes"] + memory["kv_bytes"] + memory["workspace_bytes"]
    own = [name for name in ("embedding", "head") if drafter[f"own_{name}"]]
    tables = "with its own " + " and ".join(own) if own else "embedding and head are the target's"
    layers = ", ".join(str(layer) for layer in drafter["target_layers"])
    window = ""
    if drafter["window"] is not None:
        window = f", a window of {drafter['window']} in {drafter['windowed_layers']} layers"
    return [
        ("drafter", drafter["file"] + (f" ({drafter['name']})" if drafter["name"] else "")),
        (
            "  network",
            f"{drafter['type']}, {drafter['parameters'] / 1e6:.1f} million parameters,"
            f" {drafter['layers']} layers",
        ),
        ("  block", f"{drafter['block_size']}, that is up to {drafter['block_size'] - 1} drafts"),
        ("  reads", f"the outputs of target layers {layers}"),
        ("  weights", f"{_size(memory['weight_bytes'])} packed, {tables}"),
        (
            "  K/V",
            f"{memory['kv_bytes_per_token'] / 1024:.1f} KiB per token{window},"
            f" {_size(memory['kv_bytes'])} at {memory['context']} tokens",
        ),
        ("  workspace", f"about {_size(memory['workspace_bytes'])}"),
        (
            "  memory",
            f"about {_size(total)} more, {_size(target_bytes + total)} in all",
        ),
    ]


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
