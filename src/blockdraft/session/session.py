"""Text on top of the engine: prompts and conversations in, answers out.

Knows no network and no K/V; those are the engine's. Nothing here draws randomness but the seed
of a request that came without one.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from blockdraft import hub
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine.engine import Engine
from blockdraft.engine.request import Request
from blockdraft.engine.sampling import NativeSampler
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.kv_cache import LARGEST_BLOCK
from blockdraft.models.target import load_target
from blockdraft.session.drafting import new_drafter, open_drafter, settle, taps_of
from blockdraft.session.generation import Generation
from blockdraft.session.grammar import Grammars
from blockdraft.session.prompt import Prompt, TextCodec, encode_prompt
from blockdraft.session.result import Result
from blockdraft.session.settings import AnswerSettings
from blockdraft.session.stream import Stream
from blockdraft.tokenizer import Tokenizer
from blockdraft.weights.gguf import GGUFFile

__all__ = ["Session", "drawn_seed"]

_MIN_CACHE_BYTES = 2 << 30
_DEFAULT_PARAMS = SamplingParams()
_DEFAULT_DRAFTING = DraftConfig()


class Session:
    """A loaded model that answers.

    Use ``Session.load``; the constructor takes parts that are ready. One thread at a time.

    Attributes:
        engine: Runs the requests.
        tokenizer: Text to ids and back.
        grammars: Makes the token rules of answers that must be JSON.
    """

    def __init__(self, engine: Engine, tokenizer: TextCodec) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.grammars = Grammars(tokenizer, engine.target.config.vocab_size)
        self._generations: dict[int, Generation] = {}

    @classmethod
    def load(
        cls,
        model: str | Path = hub.DEFAULT_MODEL,
        *,
        num_threads: int | None = None,
        ctx_size: int | None = None,
        max_cache_bytes: int | None = None,
        isa: str | None = None,
        drafting: DraftConfig = _DEFAULT_DRAFTING,
        cache_dir: Path | None = None,
    ) -> "Session":
        """A session on a model.

        Args:
            model: A known name, a path, or ``hf:ORG/REPO[:FILE]``; `hub.resolve` tells about
                downloads.
            num_threads: Threads of the native core; None is one per core.
            ctx_size: The most tokens of prompt and answer; None is what the model was trained for.
            max_cache_bytes: Budget of K/V memory over all requests, touched as it is used; None is
                2 GiB, or one full context where that is more.
            isa: Instruction set to force; None takes the best of this machine.
            drafting: How tokens are drafted; it never changes them.
            cache_dir: Folder of downloaded models, with compiled tokenizers in ``tokenizers``
                below it; None is the user's cache.

        Raises:
            BlockdraftError: The model cannot be found, read or run, or a setting is out of range.
        """
        tokenizer_dir = None if cache_dir is None else cache_dir / "tokenizers"
        path = hub.resolve(str(model), cache_dir=cache_dir)
        drafting = settle(drafting, path)
        with (
            GGUFFile.open(path) as file,
            open_drafter(drafting, file, cache_dir=cache_dir) as drafter_file,
        ):
            tokenizer = Tokenizer.from_gguf(file, cache_dir=tokenizer_dir)
            taps = taps_of(drafter_file)
            target = load_target(file, num_threads=num_threads, isa=isa, taps=taps)
            drafter = new_drafter(drafting, drafter_file, target, file, cache_dir=cache_dir)
        if max_cache_bytes is None:
            context = min(ctx_size or target.config.context_length, target.config.context_length)
            layouts = [target.new_cache_pool(0).layout]
            if drafter is not None and drafter.cache_layout is not None:
                layouts.append(drafter.cache_layout)
            full_context = sum(
                layout.max_bytes(context + LARGEST_BLOCK, rows_per_pass=target.max_rows)
                for layout in layouts
            )
            max_cache_bytes = max(_MIN_CACHE_BYTES, full_context)
        engine = Engine(
            target,
            max_cache_bytes=max_cache_bytes,
            context_length=ctx_size,
            sampler=NativeSampler(isa),
            drafter=drafter,
        )
        return cls(engine, tokenizer)

    def generate(
        self,
        prompt: Prompt,
        *,
        params: SamplingParams = _DEFAULT_PARAMS,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        raw: bool | None = None,
        draft: bool = True,
    ) -> Result:
        """The whole answer to one prompt; arguments and errors as in `stream`."""
        with self.stream(
            prompt, params=params, max_tokens=max_tokens, stop=stop, raw=raw, draft=draft
        ) as stream:
            for _ in stream:
                pass
            return stream.result

    def stream(
        self,
        prompt: Prompt,
        *,
        params: SamplingParams = _DEFAULT_PARAMS,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        raw: bool | None = None,
        draft: bool = True,
    ) -> Stream:
        """The answer to one prompt, piece by piece; several streams may be read in turn.

        Args:
            prompt: A text, or a conversation as a list of ``{"role": ..., "content": ...}``.
            params: How tokens are picked; without a seed one is drawn, see ``Result.seed``.
            max_tokens: The most tokens to write; None is what the context has room for.
            stop: Strings that end the answer; they are not part of its text.
            raw: True uses no chat template; None uses one where the model has it.
            draft: False writes this answer without drafts.

        Raises:
            BlockdraftError: The prompt, a parameter or a stop string cannot be honoured, or the
                request does not fit context or memory.
        """
        called_s = time.perf_counter()
        settings = AnswerSettings(
            params, max_tokens, (stop,) if isinstance(stop, str) else tuple(stop), draft=draft
        )
        return self.start(self.encode(prompt, raw=raw), settings, called_s=called_s)

    def start(
        self,
        token_ids: Sequence[int],
        settings: AnswerSettings,
        *,
        called_s: float | None = None,
    ) -> Stream:
        """The answer to a prompt that is ids already.

        Args:
            token_ids: What the model reads.
            settings: How the answer is written.
            called_s: When it was asked for, by ``time.perf_counter``; None is now.

        Raises:
            BlockdraftError: As in `stream`.
        """
        called_s = time.perf_counter() if called_s is None else called_s
        params = settings.params
        if params.seed is None:
            params = replace(params, seed=drawn_seed())
        assert params.seed is not None
        generation = Generation(
            self.tokenizer.stream_decoder(), stop=settings.stop, seed=params.seed
        )
        limit = settings.max_tokens
        request = Request(
            tuple(token_ids),
            params,
            self._room(len(token_ids)) if limit is None else limit,
            self.tokenizer.eos_ids,
            settings.choice,
            stop_rule=generation.ends_with,
            draft=settings.draft,
            draft_n_max=settings.draft_n_max,
            token_rule=settings.token_rule,
            num_logprobs=settings.num_logprobs,
        )
        generation.before_s = time.perf_counter() - called_s
        request_id = self.engine.add(request)
        self._generations[request_id] = generation
        return Stream(
            generation,
            advance=self.advance,
            cancel=partial(self._cancel, request_id),
        )

    def batch(
        self,
        prompts: Sequence[Prompt],
        *,
        params: SamplingParams = _DEFAULT_PARAMS,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        raw: bool | None = None,
        draft: bool = True,
    ) -> list[Result]:
        """The answers to many prompts, run together; each is what `generate` gives alone.

        Arguments and errors are those of `stream`. A seed given in ``params`` is every prompt's;
        without one each prompt draws its own.
        """
        streams: list[Stream] = []
        try:
            for prompt in prompts:
                streams.append(
                    self.stream(
                        prompt,
                        params=params,
                        max_tokens=max_tokens,
                        stop=stop,
                        raw=raw,
                        draft=draft,
                    )
                )
            for stream in streams:
                for _ in stream:
                    pass
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return [stream.result for stream in streams]

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The ids that the model would read for ``prompt``; safe from any thread.

        Args:
            prompt: As in `stream`.
            raw: As in `stream`.
            tools: Descriptions of functions that the chat template shows to the model.
            variables: More names that the chat template knows, such as ``enable_thinking``.

        Raises:
            BlockdraftError: As in `stream`.
        """
        return encode_prompt(self.tokenizer, prompt, raw=raw, tools=tools, variables=variables)

    def _room(self, num_prompt: int) -> int:
        room = self.engine.context_length - num_prompt
        if room < 1:
            raise CapacityError(
                f"{num_prompt} prompt tokens leave no room in the context of "
                f"{self.engine.context_length}"
            )
        return room

    def advance(self) -> None:
        """Run one step of the engine and hand its tokens to their streams.

        Raises:
            Exception: The step failed; every answer that was running is cancelled.
        """
        try:
            events = self.engine.step()
        except BaseException:
            # A step that was cut short may have lost tokens of any request.
            for request_id in list(self._generations):
                self._cancel(request_id)
            raise
        for event in events:
            generation = self._generations.get(event.request_id)
            if generation is None:
                raise ConfigError(f"request {event.request_id} was not made by this session")
            generation.feed(event)
            if generation.result is not None:
                del self._generations[event.request_id]

    def _cancel(self, request_id: int) -> None:
        generation = self._generations.pop(request_id, None)
        if generation is not None:
            generation.finish("cancelled", self.engine.cancel(request_id))


def drawn_seed() -> int:
    """53 random bits: what programs that read JSON numbers as doubles keep exactly."""
    return int.from_bytes(os.urandom(7), "little") >> 3
