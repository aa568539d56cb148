"""An argument parser whose complaints name what was probably meant.

Knows no command. Imports only what ``blockdraft --help`` may cost.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from blockdraft.errors import ConfigError

__all__ = ["Parser", "at_least", "suggestion"]


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviated flag and raises `ConfigError` where argparse would exit.

    Attributes:
        hints: What to say about flags that we do not have but other programs do.
    """

    def __init__(self, **options: Any) -> None:
        """Take the options of `argparse.ArgumentParser`."""
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self.hints: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message} (see '{self.prog} --help')")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments.

        Raises:
            ConfigError: A flag or value is unknown; the message says which and what is close.
        """
        for word in arguments:
            if word == "--":
                break
            hint = self.hints.get(word.partition("=")[0])
            if hint is not None:
                self.error(f"there is no flag {word}: {hint}")
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(self._about_unknown(unknown))
        return args

    def _about_unknown(self, words: Sequence[str]) -> str:
        flag = next((word for word in words if word.startswith("-")), None)
        if flag is None:
            return f"unexpected argument {words[0]!r}; text with spaces needs quotes"
        flag = flag.partition("=")[0]
        return f"there is no flag {flag}{suggestion(flag, self._flags())}"

    def _flags(self) -> list[str]:
        """Flags of this parser and of its sub-commands."""
        flags = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags += parser._flags()
        return flags


def suggestion(word: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` with the closest of ``known``, or ``""``."""
    spelled = {name.replace("_", "-"): name for name in known}
    close = get_close_matches(word.replace("_", "-"), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


def at_least(minimum: int) -> Callable[[str], int]:
    """A type of argument: whole numbers not below ``minimum``."""

    def integer(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below the smallest allowed, {minimum}")
        return value

    return integer
