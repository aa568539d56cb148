"""What passes cost here, measured once for each machine, model and number of threads.

Knows files and the cache folder; the measuring is `speculative.measure`'s.
"""

import hashlib
import json
import logging
import platform
from pathlib import Path

import blockdraft
from blockdraft import _native, hub
from blockdraft.models.drafter import DrafterModel
from blockdraft.models.small import SmallModel
from blockdraft.models.target import TargetModel
from blockdraft.speculative.costs import CostModel
from blockdraft.speculative.measure import are_overpriced, measure_costs
from blockdraft.weights.replacing import replacing

__all__ = ["cpu_name", "load_costs"]

_LOG = logging.getLogger(__name__)
_FORMAT = 2  # of the file
_CPU_INFO = Path("/proc/cpuinfo")


def load_costs(
    target: TargetModel,
    drafter: DrafterModel | SmallModel | None,
    files: list[Path],
    *,
    cache_dir: Path | None = None,
) -> CostModel:
    """Costs as measured before, or measured now and kept.

    Costs that were measured on a busy machine are measured again once passes prove faster.

    Args:
        target: The target.
        drafter: Its drafter's network; None where nothing but the target costs time.
        files: Their files; other contents ask for another measurement.
        cache_dir: Folder of downloaded models, with ``costs`` beside it; None is the user's cache.
    """
    folder = (cache_dir or hub.default_cache_dir()).parent / "costs"
    path = folder / f"{_key(target, files)}.json"
    try:
        known = CostModel.from_json(json.loads(path.read_text("utf-8")))
        if not are_overpriced(target, known):
            return known
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        _LOG.warning("measuring costs again: %s: %s", path, error)
    costs = measure_costs(target, drafter)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(costs.to_json()).encode())
    except OSError as error:
        _LOG.warning("costs are not kept: %s", error)
    return costs


def _key(target: TargetModel, files: list[Path]) -> str:
    facts: list[object] = [_FORMAT, blockdraft.__version__, cpu_name()]
    facts += [target.num_threads, target.isa]
    for file in [Path(_native.__file__), *files]:
        entries = sorted(file.iterdir()) if file.is_dir() else [file]
        for entry in entries:
            status = entry.stat()
            facts.append([str(entry.resolve()), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def cpu_name() -> str:
    """Model of the processor, as far as the system tells."""
    try:
        text = _CPU_INFO.read_text("utf-8", errors="replace")
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.machine())
