"""A page of the documents, taken apart: sections under the names that a Markdown viewer gives them, links, code."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

LINK: Final = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
IMAGE: Final = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")

_HEADING: Final = re.compile(r"#+ +(.+)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INDENTED: Final = re.compile(r"(?:\A|(?<=\n\n))(?:(?: {4}.*|)\n)* {4}.*(?=\n|\Z)")
_SPAN: Final = re.compile(r"`([^`]+)`")


def sections(page: str) -> dict[str, str]:
    """{anchor: heading and text, up to the next heading of any level}. Text above the first heading is left out.

    A second heading of the same text has the anchor of the first and "-1", as on GitHub.
    """
    found: dict[str, list[str]] = {}
    used: Counter[str] = Counter()
    lines: list[str] = []
    in_fence = False
    for line in page.splitlines(keepends=True):
        in_fence ^= line.startswith("```")
        heading = None if in_fence else _HEADING.match(line)
        if heading:
            name = anchor(heading[1])
            used[name] += 1
            lines = found[name if used[name] == 1 else f"{name}-{used[name] - 1}"] = []
        lines.append(line)
    return {name: "".join(text) for name, text in found.items()}


def anchor(heading: str) -> str:
    """The name that a Markdown viewer gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def code_blocks(text: str) -> list[str]:
    """The fenced and the indented blocks of code, in their order, as they are written."""
    blocks = [(match.start(), match[0]) for match in _FENCE.finditer(text)]
    # What is inside a fence is blanked out, so that offsets stay.
    rest = _FENCE.sub(lambda fence: re.sub(r"[^\n]", "x", fence[0]), text)
    blocks += [(match.start(), match[0].strip("\n").rstrip()) for match in _INDENTED.finditer(rest)]
    return [block for _, block in sorted(blocks)]


def code_spans(text: str) -> set[str]:
    """The names and values in backquotes outside of blocks, with single spaces."""
    prose = _FENCE.sub("", text)
    prose = _INDENTED.sub("", prose)
    return {" ".join(span.split()) for span in _SPAN.findall(prose)}
