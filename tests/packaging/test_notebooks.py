"""The notebooks in examples/ run from their first cell to the last, and show what their text says."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
CONTENT_BYTES_MAX = 30_000

# In a process of its own: warnings of the notebook machinery are not ours.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
nbformat.validate(notebook)
where = {"metadata": {"path": sys.argv[2]}}
NotebookClient(notebook, timeout=280, kernel_name="python3", resources=where).execute()
nbformat.write(notebook, sys.argv[3])
"""


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def execute(notebook: Path, scratch: Path) -> list[dict[str, Any]]:
    """The code cells after a run; nothing may be left behind in the notebook's or the temporary directory."""
    temporary = scratch / "temporary"
    temporary.mkdir()
    before = set(notebook.parent.iterdir())
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("storage", "connector")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(temporary),
        "IPYTHONDIR": str(scratch / "ipython"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook), str(notebook.parent), str(scratch / notebook.name)],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(notebook.parent.iterdir()) == before
    assert [path.name for path in temporary.iterdir() if path.name.startswith("pyspark-rmq")] == []
    return cells(scratch / notebook.name)


def shown(cell: dict[str, Any]) -> str:
    """What a cell shows as text: its table, or its result, and what it printed."""
    parts = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            parts.append(html.unescape(re.sub(r"<[^>]+>", " ", "".join(data["text/html"]))))
        else:
            parts.append("".join(data.get("text/plain", output["text"] if output.get("name") == "stdout" else "")))
    return " ".join(" ".join(parts).split())


def pictures(ran: list[dict[str, Any]]) -> int:
    return sum("image/png" in output.get("data", {}) for cell in ran for output in cell["outputs"])


def test_there_are_notebooks() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["a-retry-ladder-in-a-stream", "triage-a-dead-letter-queue"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(notebook))
    assert notebook.stat().st_size < CONTENT_BYTES_MAX


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.statement("D02", "D06")
@pytest.mark.slow
def test_triage_of_a_real_dead_letter_queue(scratch: Path) -> None:
    ran = execute(ROOT / "examples" / "notebooks" / "triage-a-dead-letter-queue.ipynb", scratch)
    everything = [shown(cell) for cell in ran]
    for words in (
        "%DLQ%cg_orders 297",
        "not recorded OrderTopic 4 297",
        "WOULD_REDRIVE NULL %RETRY%cg_orders 98",
        "REDRIVEN NULL %RETRY%cg_orders 98",
        "98 98 0",
        "ALREADY_REDRIVEN moved before 98",
        "98 messages came back",
        "ValueError nothing to bill: the order was cancelled",
        "json.decoder.JSONDecodeError Expecting value",
        "REDRIVEN NULL CancelledOrders 17",
        "PARKED replayed 1 times UnreadableOrders 12",
        "ALREADY_REDRIVEN 127 WOULD_REDRIVE 199",
    ):
        assert any(words in text for text in everything), (words, everything)
    assert pictures(ran) == 3


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.statement("B05", "B08", "B14", "C08", "D01")
@pytest.mark.slow
def test_a_retry_ladder_in_a_stream(scratch: Path) -> None:
    ran = execute(ROOT / "examples" / "notebooks" / "a-retry-ladder-in-a-stream.ipynb", scratch)
    everything = [shown(cell) for cell in ran]
    for words in (
        "('ORD-1', 0.0, 0, 'SUCCESS')",
        "22 deliveries in 4 h 45 min 40 s",
        "Orders ORD-3 17 UnicodeDecodeError",
        "%RETRY%cg_bills ORD-3 16",
        "SCHEDULE_TOPIC_XXXX ORD-3 16",
        "%RETRY%cg_bills ORD-2 3",
    ):
        assert any(words in text for text in everything), (words, everything)
    assert pictures(ran) == 1
