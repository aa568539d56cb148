"""Flags that several sub-commands share, named as the users of llama.cpp know them."""

import argparse
import os
from pathlib import Path

from blockdraft.cli.parser import Parser, at_least
from blockdraft.config import DRAFT_POLICIES, DRAFT_TYPES, DraftConfig, SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.hub import DEFAULT_MODEL

__all__ = [
    "AUTO",
    "DRAFT_HINTS",
    "NONE",
    "add_cache_option",
    "add_corpus_option",
    "add_draft_options",
    "add_drafter_option",
    "add_engine_options",
    "add_model_option",
    "add_sampling_options",
    "add_show_draft_option",
    "cache_dir",
    "decode_text",
    "draft_config",
    "max_tokens",
    "sampling_params",
]

_ISAS = ("scalar", "avx2", "avx512")

AUTO, NONE = "auto", "none"
"""Values of ``-md`` that are no path: what is shipped for the model, and no network."""

DRAFT_HINTS = {
    "--spec-draft-n-min": "a round may draft any number of tokens up to --spec-draft-n-max",
    "--draft-min": "a round may draft any number of tokens up to --spec-draft-n-max",
    "--draft-p-min": "use --spec-draft-p-min",
    "--draft": "use --spec-draft-n-max",
    "--draft-n": "use --spec-draft-n-max",
    "--draft-max": "use --spec-draft-n-max",
}
"""What to say about flags of llama.cpp that concern drafting."""

_LLAMA_CPP_HINTS = {
    "-p": "the prompt is an argument of its own: blockdraft run 'PROMPT'",
    "--prompt": "the prompt is an argument of its own: blockdraft run 'PROMPT'",
    "-cnv": "use blockdraft chat",
    "--conversation": "use blockdraft chat",
    "-i": "use blockdraft chat",
    "--interactive": "use blockdraft chat",
    "-no-cnv": "use --raw",
    "-hf": "use -m hf:ORG/REPO",
    "-hfr": "use -m hf:ORG/REPO",
    "--hf-repo": "use -m hf:ORG/REPO",
    "-ngl": "the model runs on the CPU",
    "--gpu-layers": "the model runs on the CPU",
    "--n-gpu-layers": "the model runs on the CPU",
    "-fa": "attention has one form",
    "--flash-attn": "attention has one form",
    "-tb": "use -t",
    "--threads-batch": "use -t",
    **DRAFT_HINTS,
    "-r": "use --stop",
    "--reverse-prompt": "use --stop",
    "--samplers": "the order is penalties, top-k, top-p, min-p, temperature",
}


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add ``-m``."""
    parser.add_argument(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="a name from 'blockdraft models', a GGUF file, or hf:ORG/REPO[:FILE]"
        " (default: %(default)s)",
    )


def add_corpus_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--corpus`` of a step that needs one."""
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="DIR", help="from 'train corpus'"
    )


def add_engine_options(parser: argparse.ArgumentParser, *, default_ctx_size: int = 0) -> None:
    """Add what decides how a model is held and run: context, threads, instruction set."""
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=at_least(0),
        default=default_ctx_size,
        metavar="N",
        help="tokens of the context; 0 is what the model was trained for (default: %(default)s)",
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=at_least(1),
        metavar="N",
        help="threads (default: one per core)",
    )
    parser.add_argument(
        "--isa",
        choices=_ISAS,
        help="instruction set (default: the best this machine has); all give the same bits",
    )


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache-ram``."""
    parser.add_argument(
        "-cram",
        "--cache-ram",
        type=at_least(0),
        default=1024,
        metavar="MIB",
        help="how much of the K/V memory may keep what was read and written, so that what begins"
        " alike is not read again; 0 keeps nothing (default: %(default)s)",
    )


def add_drafter_option(parser: argparse._ActionsContainer, *, default: str | None = None) -> None:
    """Add ``-md``."""
    shown = "" if default is None else " (default: %(default)s)"
    parser.add_argument(
        "-md",
        "--model-draft",
        "--spec-draft-model",
        default=default,
        metavar="DRAFTER",
        help="a drafter made for the model: a GGUF file, a folder, or hf:ORG/REPO[:FILE]; or a"
        " smaller model with the same tokens; auto: what comes with blockdraft for this model (none"
        f" does yet); none: no network, drafts are still looked up{shown}",
    )


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how tokens are drafted."""
    group = parser.add_argument_group("drafting", "changes the speed, never a token")
    add_drafter_option(group, default=AUTO)
    group.add_argument(
        "--spec-type",
        type=_spec_type,
        metavar="TYPE,...",
        help="none; ngram: what followed the same words last; suffix: what mostly followed the"
        " longest run of the same words; dflash: the network of -md; draft-simple: the smaller"
        " model of -md; several work together (default: ngram, suffix and what -md gives; with"
        " --spec-policy fixed what -md gives, or ngram)",
    )
    group.add_argument(
        "--spec-policy",
        choices=DRAFT_POLICIES,
        default=DRAFT_POLICIES[0],
        help="auto drafts only what pays; fixed drafts in every round as much as it may"
        " (default: %(default)s)",
    )
    group.add_argument(
        "--spec-draft-n-max",
        type=int,
        metavar="K",
        help="most draft tokens of a round (default: all that the drafter's block has room for,"
        " 7 for the others)",
    )
    group.add_argument(
        "--spec-draft-tree",
        type=int,
        metavar="N",
        help="most draft tokens of a tree of dflash, where --temp is 0; 0 drafts chains"
        " (default: 15 with --spec-policy auto, which verifies those that pay; or else 0)",
    )
    group.add_argument(
        "--spec-draft-p-min",
        type=float,
        default=0.0,
        metavar="P",
        help="end a proposal before a draft less probable than this (default: 0, off)",
    )
    group.add_argument(
        "--spec-suffix-cache",
        metavar="FILE",
        help="let --spec-type suffix look into earlier answers too: FILE keeps the tokens of the"
        " latest, readable by you alone (default: none are kept)",
    )
    group.add_argument(
        "--spec-suffix-corpus",
        default=AUTO,
        metavar="FILE",
        help="let --spec-type suffix look into many answers of the model: a FILE of 'train"
        " suffixes'; auto: what comes with blockdraft for this model; none (default: %(default)s)",
    )
    group.add_argument(
        "--spec-trace",
        metavar="FILE",
        help="write every decision of --spec-policy auto to FILE, a JSON object a line",
    )


def _spec_type(text: str) -> str:
    """Types by our names or llama.cpp's."""
    names = ["dflash" if name == "draft-dflash" else name for name in text.split(",")]
    for name in names:
        if name not in DRAFT_TYPES:
            known = ", ".join(map(repr, DRAFT_TYPES))
            raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {known})")
    return ",".join(names)


def draft_config(args: argparse.Namespace) -> DraftConfig:
    """How a command line drafts.

    Raises:
        ConfigError: A value is out of range, or two contradict each other.
    """
    spec_type, drafter = args.spec_type, args.model_draft
    for kind in ("dflash", "draft-simple") if drafter == NONE else ():
        if kind in (spec_type or "").split(","):
            raise ConfigError(f"--spec-type {kind} needs a drafter, which -md none turns off")
    if drafter == NONE:
        spec_type = spec_type or ("ngram,suffix" if args.spec_policy == "auto" else "ngram")
    return DraftConfig(
        spec_type,
        None if drafter in (AUTO, NONE) else drafter,
        policy=args.spec_policy,
        draft_n_max=args.spec_draft_n_max,
        draft_tree=args.spec_draft_tree,
        draft_p_min=args.spec_draft_p_min,
        suffix_cache=args.spec_suffix_cache,
        suffix_corpus=None if args.spec_suffix_corpus == AUTO else args.spec_suffix_corpus,
        trace=args.spec_trace,
    )


def add_show_draft_option(parser: argparse.ArgumentParser, *, default: bool) -> None:
    """Add ``--show-draft`` and its opposite."""
    parser.add_argument(
        "--show-draft",
        action=argparse.BooleanOptionalAction,
        default=default,
        help="colour accepted drafts green; the model's own tokens stay as they are"
        f" (default: {'on' if default else 'off'})",
    )


def add_sampling_options(parser: Parser) -> None:
    """Add what decides how tokens are picked and when the answer ends."""
    parser.hints = _LLAMA_CPP_HINTS
    defaults = SamplingParams()
    group = parser.add_argument_group(
        "sampling", "applied in the order penalties, top-k, top-p, min-p, temperature"
    )
    number = {"type": float, "metavar": "X"}
    integer = {"type": int, "metavar": "N"}
    for flags, options, default, text in (
        (["--temp"], number, defaults.temperature, "temperature; 0 takes the most probable"),
        (["--top-k"], integer, defaults.top_k, "keep the N most probable; 0 keeps all"),
        (["--top-p"], number, defaults.top_p, "keep the smallest set of this mass; 1 keeps all"),
        (["--min-p"], number, defaults.min_p, "drop below this share of the best; 0 keeps all"),
        (["--repeat-penalty"], number, defaults.repeat_penalty, "divide recent tokens; 1 is off"),
        (["--repeat-last-n"], integer, defaults.repeat_last_n, "recent tokens; -1 is all"),
        (["--presence-penalty"], number, defaults.presence_penalty, "subtract once; 0 is off"),
        (["--frequency-penalty"], number, defaults.frequency_penalty, "subtract per use; 0 is off"),
    ):
        group.add_argument(*flags, **options, default=default, help=f"{text} (default: {default})")  # type: ignore[arg-type]
    group.add_argument(
        "-s", "--seed", type=int, metavar="N", help="seed of the noise (default: drawn and shown)"
    )
    group.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        type=at_least(-1),
        default=-1,
        metavar="N",
        help="most tokens to write (default: -1, until a stop or the end of the context)",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text; may be given several times",
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters of a command line; without a seed the session draws one.

    Raises:
        ConfigError: A value is out of range or a stop text is empty.
    """
    if "" in args.stop:
        raise ConfigError("--stop has an empty text; it must have at least one character")
    return SamplingParams(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repeat_penalty=args.repeat_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        repeat_last_n=args.repeat_last_n,
        seed=None if args.seed == -1 else args.seed,
    )


def max_tokens(args: argparse.Namespace) -> int | None:
    """The limit of ``-n``; None for its -1, until a stop or the end of the context.

    Raises:
        ConfigError: It is 0.
    """
    if args.predict == 0:
        raise ConfigError("-n is 0; it must be -1 (no limit) or at least 1")
    return None if args.predict == -1 else int(args.predict)


def cache_dir() -> Path | None:
    """The model cache that the environment asks for, or None for the usual place.

    Raises:
        ConfigError: ``BLOCKDRAFT_CACHE`` names something that is not a directory.
    """
    value = os.environ.get("BLOCKDRAFT_CACHE", "")
    if not value:
        return None
    path = Path(value).expanduser()
    if path.exists() and not path.is_dir():
        raise ConfigError(f"BLOCKDRAFT_CACHE is {value}, which is not a directory")
    return path.absolute()


def decode_text(data: bytes, name: str) -> str:
    """``data`` as text.

    Raises:
        ConfigError: It is not UTF-8; the message says where.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text: byte {error.start} is wrong") from error
