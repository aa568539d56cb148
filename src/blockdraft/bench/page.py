"""A report as one HTML file that loads nothing: tables, notes and a picture inside it.

Knows texts and bytes, no reports. Every text is escaped.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from blockdraft.bench.report import Table

__all__ = ["Page"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1.5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
div { overflow-x: auto; }
img { max-width: 100%; background: #fff; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Page:
    """What is on the page, from top to bottom.

    Attributes:
        title: Its heading.
        lines: Paragraphs below it.
        picture: A PNG.
        tables: Tables below that.
        command: What made the report.
    """

    title: str
    lines: Sequence[str]
    picture: bytes
    tables: Sequence[Table]
    command: str

    def to_html(self) -> str:
        """The whole file."""
        image = base64.b64encode(self.picture).decode()
        title = escape(self.title)
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{title}</title>",
                f"<style>{_STYLE}</style>",
                f"<h1>{title}</h1>",
                *(f"<p>{escape(line)}</p>" for line in self.lines),
                f'<img alt="{title}" src="data:image/png;base64,{image}">',
                *(_table(table) for table in self.tables),
                f"<pre>{escape(self.command)}</pre>",
                "</html>\n",
            ]
        )


def _table(table: Table) -> str:
    head = _row(table.header, "th")
    body = "\n".join(_row(cells, "td") for cells in table.rows)
    return f"<div><table>\n<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"


def _row(cells: Sequence[Any], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(f'{cell}')}</{tag}>" for cell in cells) + "</tr>"
