"""Sessions whose rounds draft what pays: several drafters together, bad ones, the trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.session import Session
from blockdraft.speculative.costs import CostCurve, CostModel
from tests.native_dflash import network
from tests.replay import assert_replays

Output = pytest.CaptureFixture[str]
PROMPT = "the rain in the"
GREEDY = SamplingParams(temperature=0.0, seed=0)
HOT = SamplingParams(temperature=20.0, top_k=0, top_p=1.0, min_p=0.0, seed=4)
DFLASH2 = network(is_dflash2=True, is_causal=False, top_k=64)


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return DFLASH2.write_folder(tmp_path_factory.mktemp("drafters") / "dflash2")


class Frozen(CostCurve):
    """A curve that the clock of this machine does not change."""

    def add(self, num_rows: int, seconds: float, slowness: float = 1.0) -> None:
        """Nothing."""


@pytest.fixture
def cheap_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs with which every draft pays."""
    costs = CostModel(Frozen({1: 1000.0, 64: 1000.001}), {"dflash": Frozen({1: 1e-6})})
    monkeypatch.setattr("blockdraft.session.drafting.load_costs", lambda *_, **__: costs)


def load(target: Path, *settings: Any, **options: Any) -> Session:
    drafting = DraftConfig(*settings, **options)
    return Session.load(target, num_threads=1, ctx_size=512, drafting=drafting)


@pytest.mark.usefixtures("cheap_drafts")
@pytest.mark.parametrize("kinds", [None, "ngram,dflash", "ngram,suffix,dflash", "dflash,ngram"])
@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "hot"])
def test_drafters_together_change_no_token(
    kinds: str | None, params: SamplingParams, target: Path, drafter: Path
) -> None:
    session = load(target, kinds, str(drafter))
    plain = load(target, "none").generate(PROMPT, params=params, max_tokens=60)
    for _ in range(2):
        found = session.generate(PROMPT, params=params, max_tokens=60)
        assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
        assert found.stats is not None
        is_every = kinds is None or "suffix" in kinds
        assert found.stats.type_name == ("ngram+suffix+dflash" if is_every else "ngram+dflash")
        assert found.stats.block_size == 16
        assert found.stats.num_accepted > 0
    assert session.engine.used_cache_bytes == 0


def test_prompts_together_are_answered_as_alone(target: Path, drafter: Path) -> None:
    session = load(target, "ngram,dflash", str(drafter))
    prompts = [PROMPT, "a", "in the " * 40]
    together = session.batch(prompts, params=HOT, max_tokens=20)
    alone = [load(target, "none").generate(p, params=HOT, max_tokens=20) for p in prompts]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_a_network_that_is_never_right_is_turned_off(target: Path, tmp_path: Path) -> None:
    path, trace = network().write_folder(tmp_path / "random"), tmp_path / "trace"
    tokens = 200
    always = load(target, "dflash", str(path), policy="fixed")
    spoilt = always.generate(PROMPT, params=HOT, max_tokens=tokens)
    assert spoilt.stats is not None
    assert spoilt.stats.mean_acceptance_length < 1.1
    session = load(target, "dflash", str(path), trace=str(trace))
    found = session.generate(PROMPT, params=HOT, max_tokens=tokens)
    assert found.token_ids == spoilt.token_ids
    assert found.stats is not None
    assert found.stats.num_drafted < spoilt.stats.num_drafted / 10
    switches = assert_replays(trace.read_text("utf-8"))
    assert switches
    # It may be tried again at times, but never runs for its own sake.
    last = switches[len(switches) // 2 :]
    assert sum(switch.runs for switch in last) <= 3
    assert not any(switch.is_on for switch in last)


class TestTrace:
    def command(self, target: Path, drafter: Path, trace: Path) -> list[str]:
        line = ["run", PROMPT, "-m", str(target), "-md", str(drafter), "-t", "1", "-n", "24"]
        return [*line, "-c", "128", "--temp", "0", "--spec-trace", str(trace)]

    def test_its_lines_replay(
        self, target: Path, drafter: Path, tmp_path: Path, capsys: Output
    ) -> None:
        trace = tmp_path / "trace.jsonl"
        trace.write_text("of an earlier run\n")
        assert main([*self.command(target, drafter, trace), "--json"]) == 0
        rounds = json.loads(capsys.readouterr().out)["speculation"]["rounds"]
        text = trace.read_text("utf-8")
        switches = assert_replays(text)
        assert 0 < len(switches) <= rounds
        assert len(text.splitlines()) == 2 * len(switches)

    @pytest.mark.parametrize("name", ["no/such/folder", ""], ids=["missing", "a folder"])
    def test_a_path_that_cannot_be_written_is_one_error(
        self, name: str, target: Path, drafter: Path, tmp_path: Path, capsys: Output
    ) -> None:
        trace = tmp_path / name
        reason = "No such file or directory" if name else "Is a directory"
        message = f"the trace {trace} cannot be written: {reason}"
        assert main(self.command(target, drafter, trace)) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"blockdraft: error: {message}\n")
        with pytest.raises(ConfigError) as caught:
            load(target, None, str(drafter), trace=str(trace))
        assert str(caught.value) == message
