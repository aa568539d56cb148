"""The model card of an exported drafter: what it is, for which target, how to use it, how good.

Made of the provenance alone, so that it says nothing that is not recorded. Knows no files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from blockdraft.hub import NAMED_MODELS

__all__ = ["LLAMA_CPP_TARGETS", "model_card"]

Facts = Mapping[str, Any]

LLAMA_CPP_TARGETS = ("llama", "qwen3")
"""Architectures of ours whose layers llama.cpp can read for a drafter (as of build b11549)."""

_FRONT_MATTER = """---
license: apache-2.0
tags:
- dflash
- speculative-decoding
- blockdraft
---"""


def model_card(provenance: Facts, *, gguf_name: str, curve_name: str | None) -> str:
    """The text of ``README.md``.

    Args:
        provenance: The content of ``provenance.json``.
        gguf_name: Name of the GGUF file beside it.
        curve_name: Name of the training curve; None where there is none.
    """
    target, drafter = provenance["target"], provenance["drafter"]
    sections = [
        _FRONT_MATTER,
        f"# {drafter['kind']} drafter for {target['name']}",
        _about(target, drafter),
        _usage(target, drafter, gguf_name),
        _quality(provenance["evaluation"]),
        _training(provenance, curve_name),
        _licence(target),
    ]
    return "\n\n".join(sections) + "\n"


def _about(target: Facts, drafter: Facts) -> str:
    taps = ", ".join(map(str, drafter["target_layer_ids"]))
    return (
        f"Proposes up to {drafter['block_size'] - 1} tokens at a time, which the target checks in"
        " one pass: the target writes what it would write anyway, faster.\n\n"
        f"* Made for one file: `{target['file']}`, sha256 `{target['sha256']}`. Other"
        " quantizations of the same model take its drafts too, a little less often.\n"
        f"* {drafter['parameters'] / 1e6:.1f} million parameters in {drafter['num_layers']} layers,"
        f" reading the target's layers {taps} (counted from 0); no embedding and no head of its"
        " own." + _head(drafter)
    )


def _head(drafter: Facts) -> str:
    rows, every = drafter["head_rows"], drafter["vocab_size"]
    if rows == every:
        return ""
    return (
        f"\n* Learned {rows:,} of the target's {every:,} tokens. blockdraft multiplies with these"
        " rows of the target's head alone; other programs use all of it."
    )


def _usage(target: Facts, drafter: Facts, gguf_name: str) -> str:
    num_drafts = drafter["block_size"] - 1
    model, ours = "MODEL", target["name"] if target["name"] in NAMED_MODELS else target["file"]
    llama_cpp = (
        f"llama-server -m {target['file']} -md DIR/{gguf_name} --spec-type draft-dflash"
        f" --spec-draft-n-max {num_drafts}"
    )
    if target["architecture"] not in LLAMA_CPP_TARGETS:
        llama_cpp = (
            f"# llama.cpp: no, it cannot read the layers of a {target['architecture']} target"
        )
    speculative = f'{{"method":"dflash","model":"DIR","num_speculative_tokens":{num_drafts}}}'
    return "\n".join(
        (
            "## Use",
            "",
            f"DIR is this folder, {model} the target's unquantized Hugging Face repository.",
            "",
            "```sh",
            f'blockdraft run "Hello" -m {ours} -md DIR/{gguf_name}',
            llama_cpp,
            f'dflash generate transformers "Hello" --model {model} --draft DIR',
            f"vllm serve {model} --speculative-config '{speculative}'",
            f"python -m sglang.launch_server --model-path {model}"
            " --speculative-algorithm DFLASH --speculative-draft-model-path DIR",
            "```",
        )
    )


def _quality(evaluation: Facts | None) -> str:
    if evaluation is None:
        return "## Quality\n\nNot evaluated by real decoding."
    num_drafts = evaluation["block_size"] - 1
    rows = [
        *((name, one) for name, one in evaluation["categories"].items()),
        ("mean over categories", evaluation["overall"]),
    ]
    header = ["category", "prompts", "tau", *(str(k) for k in range(1, num_drafts + 1))]
    table = [header, ["---", *["--:"] * (num_drafts + 2)]]
    table += [_cells(name, one, num_drafts) for name, one in rows]
    return (
        "## Quality\n\n"
        f"Of {evaluation['evaluated']}: greedy answers of at most {evaluation['max_tokens']} tokens"
        f" with {num_drafts} drafts a round. tau is tokens per pass of the target; then the share"
        " of rounds whose first k drafts were accepted.\n\n"
        + "\n".join(f"| {' | '.join(cells)} |" for cells in table)
        + f"\n\n`{' '.join(evaluation['command'])}` on {evaluation['machine']['cpu']}."
    )


def _cells(name: str, one: Facts, num_drafts: int) -> list[str]:
    shares = [f"{share:.0%}" for share in one["accepted_by_position"]]
    tau = "-" if one["tau"] is None else f"{one['tau']:.2f}"
    return [name, f"{one['prompts']}", tau, *shares, *["-"] * (num_drafts - len(shares))]


def _training(provenance: Facts, curve_name: str | None) -> str:
    run, corpus = provenance["run"], provenance["corpus"]
    lines = ["## Training", ""]
    if corpus is not None:
        counts = corpus["counts"]
        lines.append(
            f"Learned from the target's own answers: {corpus['sequences']:,} answers,"
            f" {counts['answer_tokens']:,} tokens."
        )
    if run is not None:
        done = run["progress"]
        machine, torch = provenance["machine"]["cpu"], provenance["versions"]["torch"]
        lines.append(
            f"{done['seconds'] / 3600:.2f} hours, {done['steps']:,} steps,"
            f" {done['label_rows']:,} drafted rows; exported on {machine} with torch {torch}."
        )
    lines.append("Every setting, seed and version is in `provenance.json`.")
    if curve_name is not None:
        lines += ["", f"![training curve]({curve_name})"]
    if corpus is not None and corpus["sources"]:
        lines += ["", "| licence of the prompts | prompts | sources |", "|---|--:|--:|"]
        lines += _licences(corpus["sources"])
    return "\n".join(lines)


def _licences(sources: Sequence[Facts]) -> list[str]:
    prompts: Counter[str] = Counter()
    for one in sources:
        prompts[one["licence"] or "not stated"] += one["prompts"]
    counts = Counter(one["licence"] or "not stated" for one in sources)
    return [f"| {name} | {count:,} | {counts[name]} |" for name, count in prompts.most_common()]


def _licence(target: Facts) -> str:
    theirs = target["licence"] or "not stated in its file"
    return (
        "## Licence\n\n"
        f"Apache-2.0. The licence of {target['name']}, which is not part of this folder: {theirs}."
    )
