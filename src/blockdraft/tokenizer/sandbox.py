"""Runs one Jinja template within a `Budget`.

Jinja's own sandbox keeps a template away from Python's internals, not from the clock or the
memory. Here every loop step, call, filter, operator and output is counted: loops, concatenations
and literals through the syntax tree, the rest through Jinja's hooks. Filters that no chat template
needs are left out.

Source: https://jinja.palletsprojects.com/en/stable/sandbox/; names and flags as in the
``apply_chat_template`` of Hugging Face's transformers.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import Environment, Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.tokenizer.budget import Budget, LimitError

__all__ = ["Sandbox"]

# Jinja compiles about 10,000 of its tokens a second; published templates have up to 6,000.
_MAX_SOURCE = 1 << 17
_MAX_TOKENS = 1 << 14
# Python compiles no more than 20, and Jinja's time grows with the square.
_MAX_LOOP_DEPTH = 20
_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("forceescape", "format", "indent", "int", "items", "join", "last", "length", "list", "lower"),
    *("map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe"),
    *("select", "selectattr", "sort", "string", "title", "trim", "unique", "upper", "urlencode"),
    "wordcount",
)
# Names that no template can spell.
_LOOP, _JOIN, _LITERAL = "loop values", "joined", "literal"
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_FIRST_ARGUMENTS = (Context, Environment, nodes.EvalContext)
# What running an arbitrary expression may raise.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TemplateError,
    TypeError,
    ValueError,
)


class _RefusalError(Exception):
    """The template called ``raise_exception``."""


class Sandbox:
    """One compiled template; render one text at a time."""

    def __init__(
        self, source: str, *, label: str, now: Callable[[], datetime], time_limit_s: float
    ) -> None:
        """Prepare ``source``.

        Args:
            source: Jinja source.
            label: What messages call the template.
            now: The clock behind ``strftime_now``.
            time_limit_s: How long compiling or one rendering may take.

        Raises:
            FileFormatError: The source is damaged or too long.
        """
        self._label = label
        self._time_limit_s = time_limit_s
        if len(source) > _MAX_SOURCE:
            raise FileFormatError(
                f"{label} has {len(source)} characters, at most {_MAX_SOURCE} are allowed"
            )
        self._environment = _Environment(now, Budget(time_limit_s))
        self._template: Template = self._guarded(lambda: self._environment.compiled(source))

    def render(self, values: Mapping[str, object]) -> str:
        """The text that the template makes of ``values``.

        Raises:
            ConfigError: The template refuses the values.
            FileFormatError: The template fails or goes beyond a limit.
        """
        return self._guarded(lambda: self._rendered(values))

    def _rendered(self, values: Mapping[str, object]) -> str:
        budget = Budget(self._time_limit_s)
        self._environment.budget = budget
        pieces: list[str] = []
        for piece in self._template.generate(values):
            budget.spend_output(len(piece))
            pieces.append(piece)
        return "".join(pieces)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except _RefusalError as error:
            raise ConfigError(f"{self._label} refuses the messages: {error}") from None
        except LimitError as error:
            raise FileFormatError(f"{self._label} was stopped: it {error}") from None
        except RecursionError:
            raise FileFormatError(f"{self._label} was stopped: it calls itself too often") from None
        except _FAILURES as error:
            kind = type(error).__name__
            raise FileFormatError(f"{self._label} fails: {kind}: {error}") from error


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with a budget that every operation draws on."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, now: Callable[[], datetime], budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[loopcontrols, _Dialect],
            finalize=self._printed,
        )
        self.budget = budget
        self._now = now
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = self._strftime
        self.filters = {name: self._counted(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = self._to_json
        self.filters[_LOOP] = self._loop
        self.filters[_JOIN] = self._join
        self.filters[_LITERAL] = self._literal

    def compiled(self, source: str) -> Template:
        """A template whose loops, concatenations and literals are counted."""
        tree = _Counting().visit(self.parse(source))
        return self.from_string(tree)

    def call(
        self,
        context: Context,
        function: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` for a template, as Jinja's hook of this name."""
        # Jinja wraps the format methods of strings when they are looked up.
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            args = tuple(map(_sized, args))
            self._check_text_method(owner, method.__name__, (*args, *kwargs.values()))
        self.budget.spend(1)
        result = super().call(context, function, *args, **kwargs)
        if function is dict:
            self.budget.spend_written(result)
        return self.budget.spend_result(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply ``operator`` for a template, as Jinja's hook of this name."""
        if operator == "%" and isinstance(left, str):
            self.budget.check_format(left)
            self.budget.spend_written(right)
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self.budget.spend(len(many) * max(times, 0))
        elif operator == "**":
            self.budget.check_width(right)
        return self.budget.spend_result(super().call_binop(context, operator, left, right))

    @pass_context
    def _printed(self, _: Context, value: Any) -> Any:
        """Count what ``{{ }}`` prints."""
        self.budget.spend_written(value)
        return value

    def _check_text_method(self, owner: str | bytes, name: str, args: tuple[Any, ...]) -> None:
        budget = self.budget
        if name in _PADDING:
            for arg in args:
                budget.check_width(arg)
            budget.spend(_padded(owner, name))
        elif name == "replace" and len(args) >= 2:
            budget.spend(_replaced(owner, args[0], args[1]))
        elif name == "join":
            budget.spend_written(args)
            budget.spend(len(owner) * sum(len(arg) for arg in args if hasattr(arg, "__len__")))
        elif name in {"format", "format_map"}:
            budget.check_format(str(owner))
            budget.spend_written(args)
        else:
            budget.spend(len(owner))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that takes what it makes from the budget, before and after it runs."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name == "join":
                args = tuple(map(_sized, args))
            # Some filters get Jinja's environment or context before their values.
            values = [arg for arg in args if not isinstance(arg, _FIRST_ARGUMENTS)]
            self._check_filter(name, values + list(kwargs.values()))
            return self.budget.spend_result(function(*args, **kwargs))

        return counted

    def _check_filter(self, name: str, values: list[Any]) -> None:
        budget = self.budget
        budget.spend(1)
        if name == "replace" and len(values) >= 3:
            budget.spend(_replaced(*(str(value) for value in values[:3])))
        elif name == "format":
            budget.check_format(str(values[0]))
            budget.spend_written(values)
        elif name == "indent":
            for value in values[1:]:
                budget.check_width(value)
            width = max((len(value) for value in values[1:] if isinstance(value, str)), default=0)
            budget.spend(str(values[0]).count("\n") * max(width, 1000))
        elif name == "join":
            glue = len(values[1]) if len(values) > 1 and isinstance(values[1], str) else 0
            items = values[0]
            budget.spend_written(items)
            budget.spend(glue * (len(items) if hasattr(items, "__len__") else 0))
        elif name in {"string", "e", "escape", "forceescape", "urlencode", "title", "trim"}:
            budget.spend_written(values)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self.budget.check_width(indent)
        self.budget.spend_written(value, indent=indent or 0)
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def _strftime(self, form: str) -> str:
        self.budget.check_format(form)
        return self._now().strftime(form)

    def _loop(self, values: Iterable[Any], text_size: int) -> Iterator[Any]:
        return self.budget.guard(values, text_size)

    def _join(self, values: list[Any]) -> str:
        self.budget.spend_written(values)
        return "".join(map(str, values))

    def _literal(self, value: Any) -> Any:
        self.budget.spend_written(value)
        return value


def _sized(value: Any) -> Any:
    """``value``, as a list when its size cannot be told."""
    return list(value) if isinstance(value, Iterator) else value


def _refuse(message: str) -> None:
    raise _RefusalError(message)


def _replaced(text: Any, old: Any, new: Any) -> int:
    """Characters of ``text`` after replacing."""
    count = text.count(old) if old else len(text) + 1
    return len(text) + count * len(new)


def _padded(owner: str | bytes, name: str) -> int:
    tabs = owner.count("\t") if isinstance(owner, str) else owner.count(b"\t")
    return len(owner) + 1000 * (tabs if name == "expandtabs" else 1)


class _Dialect(Extension):
    """Counts a template's tokens; knows ``{% generation %}``, which marks text for training."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it without ClassVar

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """``stream``, up to the limit."""
        for count, token in enumerate(stream):
            if count == _MAX_TOKENS:
                raise LimitError(f"has more than {_MAX_TOKENS} tokens of Jinja")
            yield token

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of ``{% generation %}``."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Puts the filters that count around loops, concatenations and literals."""

    def __init__(self) -> None:
        self._loop_depth = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """``node`` with its children replaced, and itself where it has to be counted."""
        is_loop = isinstance(node, nodes.For)
        self._loop_depth += is_loop
        if self._loop_depth > _MAX_LOOP_DEPTH:
            raise LimitError(f"nests loops more than {_MAX_LOOP_DEPTH} deep")
        node = super().generic_visit(node, *args, **kwargs)
        self._loop_depth -= is_loop
        if isinstance(node, nodes.For):
            size = sum(len(data.data) for part in node.body for data in _constants(part))
            node.iter = _filtered(node.iter, _LOOP, [nodes.Const(size)])
        elif isinstance(node, nodes.Concat):
            return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOIN, [])
        elif isinstance(node, nodes.List | nodes.Dict | nodes.Tuple):
            # A tuple may also be what a loop or an assignment sets.
            is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
            return node if is_target else _filtered(node, _LITERAL, [])
        return node


def _constants(node: nodes.Node) -> Iterator[nodes.TemplateData]:
    if isinstance(node, nodes.TemplateData):
        yield node
    yield from node.find_all(nodes.TemplateData)


def _filtered(node: nodes.Node, name: str, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, args, [], None, None, lineno=node.lineno)
