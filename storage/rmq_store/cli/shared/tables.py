"""The lines of a table: columns two spaces apart; flexible ones are wrapped or cut to the available room.

Cells are text that is safe for a terminal (`output.printable`). A wrapped cell continues in the lines below, so that
nothing of a name is lost; a cell that is cut ends with an ellipsis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from rmq_store.lazy.dataclasses import dataclass

Row = Sequence[str | int]

# The least width of a column that gives way; and the width of each where that is not enough: the terminal breaks the
# lines itself.
_WIDTH_LEAST = 8
_WIDTH_BROKEN = 32

# A cell that takes more lines is cut in the last one: an error message may have thousands of characters.
_LINES_MOST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right`: aligned to the right. Only columns with `wrap` or `cut` may become narrower."""

    name: str
    right: bool = False
    wrap: bool = False
    cut: bool = False


def columns_of(
    names: Sequence[str], *, wrap: Collection[str] = (), cut: Collection[str] = (), right: Sequence[bool]
) -> list[Column]:
    """The columns of these names."""
    pairs = zip(names, right, strict=True)
    return [Column(name, is_right, name in wrap, name in cut) for name, is_right in pairs]


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    room: int | None,
    *,
    header: bool = True,
    least: Sequence[int] = (),
    cropped: bool = False,
) -> Iterator[str]:
    """The header, if wanted, and the lines of each row, in at most `room` columns if that is given and possible.
    `cropped`: longer lines lose their end; else the terminal breaks them.

    `least`: widths of the first columns (`widths_of`), so that a table that is written in parts is aligned.
    """
    cells = [[column.name for column in columns]] if header else []
    cells += [list(row) for row in rows]
    widths = [max(pair) for pair in zip_longest(widths_of(cells) or [0] * len(columns), least, fillvalue=0)]
    if room is not None:
        widths = _fitted(widths, [column.wrap or column.cut for column in columns], room, cropped)
    for row in cells:
        parts = map(_parts, columns, row, widths)
        for line in zip_longest(*parts, fillvalue=""):
            yield "  ".join(map(_padded, line, widths, (column.right for column in columns))).rstrip()


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column, in terminal columns."""
    from rich.cells import cell_len  # CJK takes two places

    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _fitted(widths: Sequence[int], flexible: Sequence[bool], room: int, cropped: bool) -> list[int]:
    """`widths` of columns two places apart, the flexible ones made narrower until all fit into `room`: the widest
    first, none to less than eight places. If they cannot fit, and nothing is lost, they keep what most names need.
    """
    found = _at_most(max(room, _WIDTH_LEAST), widths, flexible)
    for _ in range(sum(found) + 2 * (len(found) - 1) - room):
        wide = [i for i, width in enumerate(found) if flexible[i] and width > _WIDTH_LEAST]
        if not wide:
            return found if cropped else _at_most(_WIDTH_BROKEN, widths, flexible)
        found[max(wide, key=lambda i: found[i])] -= 1
    return found


def _at_most(most: int, widths: Sequence[int], flexible: Sequence[bool]) -> list[int]:
    return [min(width, most) if gives else width for width, gives in zip(widths, flexible, strict=True)]


def _parts(column: Column, text: str, width: int) -> list[str]:
    """The lines of a cell."""
    lines: list[str] = []
    while column.wrap and len(lines) < _LINES_MOST - 1:
        end = _fitting(text, width)
        if end == len(text):
            break
        blank = text.rfind(" ", end // 2, end + 1)
        if blank > 0:
            lines.append(text[:blank])
            text = text[blank + 1 :]
        else:
            lines.append(text[:end])
            text = text[end:]
    return [*lines, cut(text, width)]


def cut(text: str, width: int) -> str:
    """`text`, or its beginning and an ellipsis if it is wider than `width` terminal columns."""
    from rich.cells import cell_len, set_cell_size

    beginning = text[: width + 1]
    return text if cell_len(beginning) <= width else set_cell_size(beginning, width - 1) + "…"


def _fitting(text: str, width: int) -> int:
    """The number of characters of `text` that fit into `width` terminal columns; at least one."""
    from rich.cells import cell_len

    end = min(len(text), width)
    while end > 1 and cell_len(text[:end]) > width:
        end -= 1
    return end


def _padded(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len

    space = " " * (width - cell_len(text))
    return space + text if right else text + space
