"""Servers under load: tokens per second of many streams together, ours and llama.cpp's in turn.

Real HTTP servers in processes of their own, on the same file. A load is some clients that ask one
question after the other until all are answered; its rate is all tokens of the answers over the
seconds from the first question to the last answer, reading of prompts included. Greedy. Every
question begins with its own number, the same for all servers, so that no cache knows it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft import _native
from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.llama_server import (
    LlamaFiles,
    LlamaSettings,
    LlamaSpec,
    program_of,
    start_llama,
    system_of,
)
from blockdraft.bench.load import Ask, drive, questions
from blockdraft.bench.our_server import start_ours
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.ratios import Ratio, paired_ratio
from blockdraft.bench.report import Notify, Table, median
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig

__all__ = [
    "STREAMS",
    "Level",
    "ServePlan",
    "ServeReport",
    "bench_serve",
    "measure_levels",
]

STREAMS = (1, 2, 4, 8, 16)

OURS_PLAIN, OURS, PEER_PLAIN, PEER = "plain", "drafted", "llama.cpp plain", "llama.cpp drafted"

_PAUSE_S = 0.1
_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class ServePlan:
    """How much to ask.

    Attributes:
        streams: Clients at once, one level after the other.
        num_requests: Questions of each client.
        max_tokens: The most tokens of an answer.
        repeats: Loads of every level on every server.
    """

    streams: tuple[int, ...] = STREAMS
    num_requests: int = 3
    max_tokens: int = 96
    repeats: int = 3


@dataclass(frozen=True, slots=True)
class Level:
    """One number of clients.

    Attributes:
        streams: Clients at once.
        rates: Tokens per second of each server in each load; loads of one place are neighbours.
    """

    streams: int
    rates: Mapping[str, Sequence[float]]

    @property
    def ratios(self) -> dict[str, Ratio]:
        """What a user wants to know: each a ratio of neighbouring loads."""
        rates = self.rates
        found = {
            "plain": paired_ratio(rates[OURS_PLAIN], rates[PEER_PLAIN]),
            "drafts_gain": paired_ratio(rates[OURS], rates[OURS_PLAIN]),
        }
        if PEER in rates:
            found["drafted"] = paired_ratio(rates[OURS], rates[PEER])
        return found

    @property
    def is_ahead(self) -> bool:
        """Whether ours is at least as fast, plain and drafted."""
        return all(one.ratio >= 1 for name, one in self.ratios.items() if name != "drafts_gain")

    def to_json(self) -> dict[str, Any]:
        """The level for programs; its keys are stable."""
        return {
            "streams": self.streams,
            "tokens_per_s": {name: median(each) for name, each in self.rates.items()},
            "loads": {name: list(each) for name, each in self.rates.items()},
            "ratios": {name: one.to_json() for name, one in self.ratios.items()},
            "ahead": self.is_ahead,
        }


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What `bench_serve` measured."""

    machine: Machine
    model: str
    threads: int
    isa: str
    peer: str
    peer_system: str
    peer_type: str
    plan: ServePlan
    levels: tuple[Level, ...]

    @property
    def is_met(self) -> bool:
        """Whether ours is ahead at every level."""
        return all(level.is_ahead for level in self.levels)

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        return {
            "levels": [level.to_json() for level in self.levels],
            "passed": self.is_met,
            "machine": asdict(self.machine),
            "model": self.model,
            "threads": self.threads,
            "isa": self.isa,
            "peer": self.peer,
            "peer_system": self.peer_system,
            "peer_type": self.peer_type,
            "requests": self.plan.num_requests,
            "max_tokens": self.plan.max_tokens,
            "repeats": self.plan.repeats,
        }

    def to_text(self) -> str:
        """The report for people."""
        sides = list(self.levels[0].rates)
        titles = {"plain": "plain / its plain", "drafts_gain": "drafted / plain"}
        titles["drafted"] = "drafted / its drafted"
        keys = list(self.levels[0].ratios)
        header = ["streams", *sides, *(titles[key] for key in keys), ""]
        rows = [
            [
                f"{level.streams}",
                *(f"{median(level.rates[side]):.1f}" for side in sides),
                *(level.ratios[key].to_text() for key in keys),
                "ahead" if level.is_ahead else "BEHIND",
            ]
            for level in self.levels
        ]
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu};"
            f" against {self.peer} with {self.peer_type}\n"
            f"its build: {self.peer_system}\n"
            f"tokens/s of all streams; {self.plan.num_requests} requests a stream,"
            f" {self.plan.max_tokens} tokens at most, {self.plan.repeats} alternating loads\n"
            f"{Table(header, rows).to_text()}"
        )


def bench_serve(
    subject: Subject,
    prompts: Sequence[SpeedPrompt],
    plan: ServePlan,
    *,
    drafting: DraftConfig,
    peer: LlamaSpec,
    files: LlamaFiles,
    notify: Notify = lambda _: None,
) -> ServeReport:
    """Compare our server with llama.cpp's.

    Args:
        subject: The model and its settings; llama.cpp gets as many threads.
        prompts: What clients ask.
        plan: How much.
        drafting: How our server drafts.
        peer: How llama.cpp's drafts; "none" compares with plain decoding alone.
        files: llama.cpp's drafter and program.
        notify: Told what is being measured.

    Raises:
        ConfigError: A server does not start or refuses a question.
        UnsupportedError: There is no llama.cpp.
    """
    most = max(plan.streams)
    notify("starting the servers")
    with ExitStack() as stack:
        servers = {
            OURS_PLAIN: stack.enter_context(
                start_ours(subject, DraftConfig("none"), parallel=most)
            ),
            OURS: stack.enter_context(start_ours(subject, drafting, parallel=most)),
        }
        for spec in (LlamaSpec(), peer):
            name = PEER if spec.type != "none" else PEER_PLAIN
            settings = LlamaSettings(subject.path, subject.num_threads, most, _CONTEXT, spec, files)
            if name not in servers:
                servers[name] = stack.enter_context(start_llama(settings))
        asks: dict[str, Ask] = {name: server.ask for name, server in servers.items()}
        return ServeReport(
            machine=describe_machine(),
            model=subject.name,
            threads=subject.num_threads,
            isa=subject.isa or _native.isa_names()[-1],
            peer=program_of(servers[PEER_PLAIN]),
            peer_system=system_of(servers[PEER_PLAIN]),
            peer_type=peer.name,
            plan=plan,
            levels=tuple(measure_levels(asks, prompts, plan, notify)),
        )


def measure_levels(
    servers: Mapping[str, Ask], prompts: Sequence[SpeedPrompt], plan: ServePlan, notify: Notify
) -> list[Level]:
    """Every level on every server, in turn; who begins goes round.

    Raises:
        ConfigError: A server refuses a question.
    """
    names = list(servers)
    for name in names:
        drive(servers[name], questions(prompts, 1, plan.max_tokens, salt="warm up"), 1)
    levels: list[Level] = []
    for streams in plan.streams:
        rates: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(plan.repeats):
            notify(f"{streams} streams, load {repeat + 1} of {plan.repeats}")
            salt = f"{streams}.{repeat}"
            asked = questions(prompts, streams * plan.num_requests, plan.max_tokens, salt=salt)
            start = repeat % len(names)
            for name in (*names[start:], *names[:start]):
                rates[name].append(drive(servers[name], asked, streams))
                time.sleep(_PAUSE_S)
        levels.append(Level(streams, rates))
    return levels
