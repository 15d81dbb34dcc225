"""The table in a format module's docstring is what people read; the dtype is what the code does. They are compared."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np
import pytest

from rmq_store.format.frames import frame_check
from rmq_store.format.tables import checkpoint
from rmq_store.format.views import consume_queue, index

ROW = re.compile(r"^    (\d+)-(\d+) +(\w+) +(int\d+)\b", re.MULTILINE)
WIDTHS = {"int32": ">i4", "int64": ">i8"}


def documented(module: ModuleType) -> list[tuple[int, int, str, str]]:
    rows = ROW.findall(module.__doc__ or "")
    return [(int(first), int(last), name, WIDTHS[kind]) for first, last, name, kind in rows]


def actual(dtype: np.dtype) -> list[tuple[int, int, str, str]]:
    fields = ((name, *dtype.fields[name]) for name in dtype.names)
    return [(start, start + field.itemsize - 1, name, field.str) for name, field, start in fields]


@pytest.mark.parametrize(
    ("module", "dtypes"),
    [
        (frame_check, [frame_check.HEADER]),
        (consume_queue, [consume_queue.ENTRY]),
        (checkpoint, [checkpoint.FIELDS]),
        (index, [index.HEADER, index.ENTRY]),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else "",
)
def test_docstring_table_gives_the_fields_of_the_dtype(module: ModuleType, dtypes: list[np.dtype]) -> None:
    assert documented(module) == [row for dtype in dtypes for row in actual(dtype)]
