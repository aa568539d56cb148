"""Talk with a model: Ctrl-C stops an answer, twice at the prompt it leaves; /help says more."""

import argparse
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

from blockdraft.cli.colour import painter, why_no_colour
from blockdraft.cli.options import (
    add_cache_option,
    add_draft_options,
    add_engine_options,
    add_model_option,
    add_sampling_options,
    add_show_draft_option,
    draft_config,
    max_tokens,
    sampling_params,
)
from blockdraft.cli.parser import Parser
from blockdraft.cli.sessions import load_session, show_stats
from blockdraft.config import SamplingParams
from blockdraft.errors import BlockdraftError, CapacityError, ConfigError, UnsupportedError
from blockdraft.session import Message, Result, Session

__all__ = ["Chat", "add_arguments", "run"]

_INTERRUPTED = 130
_HELP = """\
/help           this list
/clear          forget the conversation
/system [TEXT]  set the system prompt of the coming turns; without TEXT show it
/stats          counts, times and seed of the last answer
/exit           leave (also Ctrl-D)
A line that ends with \\ goes on in the next line.
Ctrl-C stops an answer; what it said so far stays in the conversation."""


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft chat``."""
    add_model_option(parser)
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="how the model should act")
    add_show_draft_option(parser, default=True)
    add_engine_options(parser)
    add_cache_option(parser)
    add_draft_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Answer turn after turn until the input ends.

    Raises:
        BlockdraftError: Flags or model cannot be honoured.
    """
    params = sampling_params(args)
    session = load_session(args, draft_config(args))
    session.engine.keep_prefixes(args.cache_ram << 20)
    if session.tokenizer.chat_template is None:
        raise UnsupportedError(
            f"{args.model} has no chat template (it is a base model); use blockdraft run"
        )
    chat = Chat(session, params, stop=args.stop, max_tokens=max_tokens(args))
    chat.system = args.system_prompt or ""
    chat.paint = painter(in_colour=args.show_draft and why_no_colour(sys.stdout) is None)
    if sys.stdin.isatty():
        with suppress(ImportError):  # not every Python was built with it
            import_module("readline")  # gives input() line editing and history
        _say(f"{args.model}; /help lists commands")
    return chat.loop()


class Chat:
    """One conversation: reads lines, keeps turns, shows answers.

    Attributes:
        system: Text of the system turn, or "".
        turns: User and assistant turns so far, oldest first.
        paint: From a piece of an answer to what is printed for it.
    """

    def __init__(
        self,
        session: Session,
        params: SamplingParams,
        *,
        stop: list[str],
        max_tokens: int | None,
    ) -> None:
        self.system = ""
        self.turns: list[Message] = []
        self.paint = painter(in_colour=False)
        self._session = session
        self._params = params
        self._stop = stop
        self._max_tokens = max_tokens
        self._last: Result | None = None

    def loop(self) -> int:
        """Take turns until /exit or the end of the input (0) or two Ctrl-C in a row (130)."""
        was_interrupted = False
        while True:
            try:
                line = _read_turn()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if was_interrupted:
                    print(file=sys.stderr)
                    return _INTERRUPTED
                was_interrupted = True
                _say("Ctrl-C again or /exit leaves", start="\n")
                continue
            was_interrupted = False
            if line.startswith("/"):
                if line.split()[0] == "/exit":
                    return 0
                self._obey(line)
            elif line.strip():
                self.answer(line)

    def answer(self, text: str) -> None:
        """Show the answer to one user turn and keep both; without an answer keep neither."""
        self.turns.append({"role": "user", "content": text})
        try:
            result = self._stream(self._fitting())
        except (BlockdraftError, KeyboardInterrupt) as error:
            self.turns.pop()
            _say("stopped" if isinstance(error, KeyboardInterrupt) else f"error: {error}")
            return
        if result.finish_reason == "cancelled":
            _say("stopped")
        elif result.finish_reason == "length":
            _say("cut: the limit of -n or the end of the context")
        self._last = result
        self.turns.append({"role": "assistant", "content": result.text})

    def _stream(self, conversation: list[Message]) -> Result:
        """Show an answer while it comes; Ctrl-C makes it "cancelled"."""
        stream = self._session.stream(
            conversation, params=self._params, max_tokens=self._max_tokens, stop=self._stop
        )
        with suppress(KeyboardInterrupt), stream:
            for chunk in stream:
                print(self.paint(chunk), end="", flush=True)
        print(flush=True)
        return stream.result

    def _fitting(self) -> list[Message]:
        """The conversation; its oldest turns are dropped while it does not fit the context."""
        room = self._session.engine.context_length - (self._max_tokens or 1)
        num_dropped = 0
        while True:
            head: list[Message] = []
            if self.system:
                head = [{"role": "system", "content": self.system}]
            conversation = head + self.turns
            num_tokens = len(self._session.encode(conversation))
            if num_tokens <= room:
                break
            if len(self.turns) < 3:
                raise CapacityError(
                    f"this turn has {num_tokens} tokens, the context has room for {max(room, 0)}"
                )
            del self.turns[:2]
            num_dropped += 2
        if num_dropped:
            _say(f"the context is full: the oldest {num_dropped} turns were dropped")
        return conversation

    def _obey(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/help":
            _say(_HELP)
        elif name == "/clear":
            self.turns.clear()
            _say("the conversation is empty")
        elif name == "/system":
            self.system = rest.strip() or self.system
            _say(f"system prompt: {self.system or 'none'}")
        elif name == "/stats":
            if self._last is None:
                _say("no answer yet")
            else:
                show_stats(self._last)
        else:
            known = ["/help", "/clear", "/system", "/stats", "/exit"]
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "/help lists commands"
            _say(f"there is no command {name}; {hint}")


def _read_turn() -> str:
    """One turn of the user; lines that end with a backslash are continued.

    Raises:
        ConfigError: The input is not UTF-8.
    """
    is_terminal = sys.stdin.isatty()
    lines: list[str] = []
    while True:
        try:
            line = input((". " if lines else "> ") if is_terminal else "")
            line.encode()
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise ConfigError(f"standard input is not UTF-8 text: {error.reason}") from error
        except EOFError:
            if lines:
                return "\n".join(lines)
            raise
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _say(message: str, *, start: str = "") -> None:
    print(f"{start}{message}", file=sys.stderr, flush=True)
