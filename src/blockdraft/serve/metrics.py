"""Counters for Prometheus. Knows answers that ended and what the engine does; no requests' text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from blockdraft.serve.engine_thread import EngineState
from blockdraft.session import Result

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """Everything that ``/metrics`` shows, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"blockdraft_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"blockdraft_{name}", about, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"blockdraft_{name}", about, registry=registry, buckets=buckets)

        self._responses = counter("http_responses", "responses sent", "endpoint", "status")
        self._answers = counter("answers", "answers that ended", "finish_reason")
        self._prompt_tokens = counter("prompt_tokens", "tokens of prompts")
        self._cached_tokens = counter("cached_prompt_tokens", "those of them that were known")
        self._predicted_tokens = counter("predicted_tokens", "tokens written")
        self._drafted = counter("spec_decode_draft_tokens", "tokens drafted")
        self._accepted = counter("spec_decode_accepted_tokens", "drafted tokens accepted")
        self._rounds = counter("spec_decode_rounds", "rounds of sequences with a drafter")
        self._round_tokens = counter("spec_decode_round_tokens", "tokens gained by those rounds")
        self._proposed_at = counter(
            "spec_decode_proposed_per_pos", "proposals at least so deep", "position"
        )
        self._accepted_at = counter(
            "spec_decode_accepted_per_pos", "proposals accepted at least so deep", "position"
        )
        self._running = gauge("answers_running", "answers that hold K/V memory")
        self._waiting = gauge("answers_waiting", "answers that wait")
        self._cache_bytes = gauge("kv_cache_used_bytes", "K/V memory in use")
        self._passes = gauge("passes", "passes of the target so far")
        self._ttft = histogram("ttft_seconds", "from a request to its first token", _SECONDS)
        self._tpot = histogram("tpot_seconds", "time of each token after the first", _TOKEN_SECONDS)

    def count(self, result: Result) -> None:
        """Count an answer that ended."""
        times = result.timings
        self._answers.labels(result.finish_reason).inc()
        self._prompt_tokens.inc(times.prompt_tokens)
        self._cached_tokens.inc(times.cached_tokens)
        self._predicted_tokens.inc(times.predicted_tokens)
        if times.ttft_s:
            self._ttft.observe(times.ttft_s)
        if times.tokens_per_s:
            self._tpot.observe(1 / times.tokens_per_s)
        stats = result.stats
        if stats is None:
            return
        self._drafted.inc(stats.num_drafted)
        self._accepted.inc(stats.num_accepted)
        self._rounds.inc(stats.num_rounds)
        self._round_tokens.inc(stats.num_tokens)
        pairs = zip(stats.proposed_by_position, stats.kept_by_position, strict=True)
        for position, (proposed, kept) in enumerate(pairs, 1):
            self._proposed_at.labels(position).inc(proposed)
            self._accepted_at.labels(position).inc(kept)

    def count_response(self, endpoint: str, status: int) -> None:
        """Count a response; ``endpoint`` is one of ours, never what a client wrote."""
        self._responses.labels(endpoint, status).inc()

    def text(self, state: EngineState, num_open: int) -> bytes:
        """The page, in Prometheus' format.

        Args:
            state: What the engine was doing after its last round.
            num_open: Answers that run or wait.
        """
        self._running.set(state.num_running)
        self._waiting.set(max(num_open - state.num_running, 0))
        self._cache_bytes.set(state.used_cache_bytes)
        self._passes.set(state.num_rounds)
        return generate_latest(self._registry)
