"""The speed report as a picture."""

from dataclasses import replace

from blockdraft.bench.depth import Depth
from blockdraft.bench.drawing import draw_speed
from blockdraft.bench.gains import PromptRun
from blockdraft.bench.limits import describe_machine
from blockdraft.bench.speed_report import SpeedReport
from blockdraft.speculative import NO_DRAFTS, Proposal, RoundCounter

NO_FORMULA = r"$\frac{"

PNG = b"\x89PNG\r\n\x1a\n"


def run_of(category: str, *, num_drafts: int) -> PromptRun:
    counter = RoundCounter("ngram", 8)
    for _ in range(5):
        proposal = Proposal.chain(range(num_drafts)) if num_drafts else NO_DRAFTS
        counter.add_round(proposal, num_accepted=num_drafts // 2, num_tokens=1)
    return PromptRun("x", category, 5, 2.0, 1.0, counter.stats(1.0), True, False)


def report_of(*, depths: int = 1, model: str = "tiny") -> SpeedReport:
    runs = (run_of("code", num_drafts=3), run_of("chat $x_", num_drafts=0))
    return SpeedReport(
        machine=describe_machine(),
        model=model,
        threads=1,
        isa="scalar",
        spec_type="ngram",
        block_size=8,
        max_tokens=8,
        repeats=1,
        depths=tuple(Depth(1000 * i, runs) for i in range(depths)),
        verify_ms={1: 1.0, 2: 1.5, 4: 3.0},
    )


def width_of(picture: bytes) -> int:
    return int.from_bytes(picture[16:20], "big")


def test_a_picture_of_three_panels_and_a_fourth_for_depths() -> None:
    few = draw_speed(replace(report_of(), verify_ms={1: 1.0}))  # one size, which is no curve
    more = draw_speed(report_of(depths=2, model=NO_FORMULA))
    assert few.startswith(PNG)
    assert width_of(more) > width_of(few)
