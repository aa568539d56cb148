"""Ways to write one answer, over one loaded target: plain, by the policy, by fixed settings.

Knows sessions and drafters, no prompts and no figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from blockdraft.bench.adversary import Adversary
from blockdraft.bench.subject import Subject
from blockdraft.bench.sweep import PLAIN
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine import Engine
from blockdraft.engine.sampling import NativeSampler
from blockdraft.errors import ConfigError
from blockdraft.models.target import TargetModel
from blockdraft.session import Result, Session
from blockdraft.session.drafting import new_drafter, open_drafter, settle
from blockdraft.speculative import Controller, Drafter
from blockdraft.speculative.measure import measure_costs
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.gguf import GGUFFile

__all__ = [
    "DRAFTED",
    "FIXED_SIZES",
    "GREEDY",
    "Way",
    "fixed_ways",
    "lone_ways",
    "spoiled",
    "two_ways",
]

GREEDY = SamplingParams(temperature=0, seed=0)
"""How every answer of a comparison is written."""

DRAFTED = "drafted"
"""Name of the way that is measured against the others."""

FIXED_SIZES = (1, 2, 3, 5, 7)
"""K of the fixed settings."""

_LOOKUPS = ("ngram", "suffix")
_CACHE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write an answer.

    Attributes:
        name: Unique among those compared.
        session: What writes it.
        draft: Whether it drafts.
        is_lone: Whether it is the policy with one of several drafters.
    """

    name: str
    session: Session
    draft: bool = True
    is_lone: bool = False

    def answer(self, prompt: str, max_tokens: int) -> Result:
        """The greedy answer to ``prompt``.

        Raises:
            BlockdraftError: The prompt cannot be honoured.
        """
        return self.session.generate(prompt, params=GREEDY, max_tokens=max_tokens, draft=self.draft)


def two_ways(session: Session) -> list[Way]:
    """Without drafts and with them."""
    return [Way(PLAIN, session, draft=False), Way(DRAFTED, session)]


def fixed_ways(session: Session, subject: Subject, drafting: DraftConfig) -> Iterator[Way]:
    """Every drafter at hand with every K of `FIXED_SIZES` that it has room for, on one target.

    Args:
        session: Its target is used.
        subject: The model.
        drafting: Names the drafter's network, if there is one.

    Raises:
        BlockdraftError: The drafter cannot be honoured.
    """
    drafting = settle(drafting, subject.path)
    for kind in (*_LOOKUPS, *_networks(session)):
        for size in FIXED_SIZES:
            drafter = _drafter(session, subject, _setting(drafting, kind, size))
            if drafter is not None:
                yield Way(f"{kind} K{size}", _session(session, subject, drafter))


def lone_ways(session: Session, subject: Subject, drafting: DraftConfig) -> Iterator[Way]:
    """Each of the session's drafters by itself, under the same policy, on one target.

    Args:
        session: Its target is used; it drafts.
        subject: The model.
        drafting: How the session drafts.

    Raises:
        ConfigError: It has only one drafter.
        BlockdraftError: The drafter cannot be honoured.
    """
    kinds = _kinds(session)
    if len(kinds) < 2:
        raise ConfigError(f"{kinds[0]} is alone in any case; --alone is for several drafters")
    drafting = settle(drafting, subject.path)
    for kind in kinds:
        one = _drafter(session, subject, drafting.alone(kind))
        assert one is not None, "a drafter that the session has"
        yield Way(kind, _session(session, subject, one), is_lone=True)


def spoiled(session: Session, subject: Subject, drafting: DraftConfig) -> Session:
    """A session whose policy has only a drafter that is always wrong.

    It costs what the network of ``drafting`` costs, or nothing where there is none.

    Raises:
        BlockdraftError: The drafter cannot be honoured.
    """
    drafting = settle(drafting, subject.path)
    kind = next(iter(_networks(session)), _LOOKUPS[0])
    inner = _drafter(session, subject, _setting(drafting, kind, drafting.draft_n_max))
    assert inner is not None, "a setting that the session has honoured"
    target = _target(session)
    adversary = Adversary(inner, target.config.vocab_size)
    return _session(session, subject, Controller([adversary], measure_costs(target)))


def _networks(session: Session) -> list[str]:
    """Types of the session's drafters that have a file of their own."""
    return [name for name in _kinds(session) if name not in _LOOKUPS]


def _kinds(session: Session) -> list[str]:
    drafter = session.engine.drafter
    return [] if drafter is None else drafter.type_name.split("+")


def _setting(drafting: DraftConfig, kind: str, size: int | None) -> DraftConfig:
    return replace(drafting.alone(kind), policy="fixed", draft_n_max=size, draft_tree=None)


def _drafter(session: Session, subject: Subject, setting: DraftConfig) -> Drafter | None:
    """The drafter of a setting; None where its block is too small for as many drafts."""
    with GGUFFile.open(subject.path) as file, open_drafter(setting, file) as drafter_file:
        if isinstance(drafter_file, DrafterFile) and setting.draft_n_max is not None:
            most = drafter_file.config.block_size - 1
            if setting.draft_n_max > most:
                return None
        return new_drafter(setting, drafter_file, _target(session), file)


def _target(session: Session) -> TargetModel:
    target = session.engine.target
    assert isinstance(target, TargetModel), "what Session.load makes"
    return target


def _session(session: Session, subject: Subject, drafter: Drafter) -> Session:
    engine = Engine(
        session.engine.target,
        max_cache_bytes=_CACHE_BYTES,
        sampler=NativeSampler(subject.isa),
        drafter=drafter,
    )
    return Session(engine, session.tokenizer)
