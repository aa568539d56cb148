"""llama.cpp's server from the ``xllamacpp`` package, as a program: ``python -m`` this module.

Its argument is a JSON object: the keys of `Settings`. Prints its address and what it was built
for, and ends when its standard input does. Everything else is llama.cpp's default.
"""

import json
import sys
from typing import Any, TypedDict

from blockdraft.errors import UnsupportedError

__all__ = ["Settings", "main"]

_KINDS = "COMMON_SPECULATIVE_TYPE_"


class Settings(TypedDict):
    """What a server is started with.

    Attributes:
        model: The file.
        threads: Of every pass.
        parallel: Answers at once.
        ctx_size: Tokens of all of them together.
        spec_type: llama.cpp's name of a way to draft, or "none".
        drafter: Its file; None where it needs none.
        n_max: Most drafts of a draft model; None is llama.cpp's.
    """

    model: str
    threads: int
    parallel: int
    ctx_size: int
    spec_type: str
    drafter: str | None
    n_max: int | None


def main() -> None:
    """Serve until standard input ends.

    Raises:
        UnsupportedError: llama.cpp does not know the way to draft.
    """
    import xllamacpp

    server = xllamacpp.Server(_params(xllamacpp, json.loads(sys.argv[1])))
    print(f"program: llama.cpp (xllamacpp {xllamacpp.__version__})")
    print(f"system_info: {xllamacpp.get_system_info()}")
    print(f"listening on {server.listening_address}", flush=True)
    sys.stdin.buffer.read()


def _params(api: Any, settings: Settings) -> Any:
    params = api.CommonParams()
    params.model.path = settings["model"]
    params.port = 0
    params.verbosity = 0
    params.n_parallel, params.n_ctx = settings["parallel"], settings["ctx_size"]
    speculative = params.speculative
    pools = [params.cpuparams, params.cpuparams_batch]
    pools += [speculative.draft.cpuparams, speculative.draft.cpuparams_batch]
    for pool in pools:
        pool.n_threads = settings["threads"]
    name = _KINDS + settings["spec_type"].upper().replace("-", "_")
    kinds = api.common_speculative_type.__members__
    if name not in kinds:
        raise UnsupportedError(f"llama.cpp has no --spec-type {settings['spec_type']}")
    speculative.types = [kinds[name]]
    if settings["drafter"] is not None:
        speculative.draft.mparams.path = settings["drafter"]
    if settings["n_max"] is not None:
        speculative.draft.n_max = settings["n_max"]
    return params


if __name__ == "__main__":
    main()
