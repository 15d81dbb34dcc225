"""How many threads are started: one function counts processors, and it counts those that this process may use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"cpu_count", "process_cpu_count", "sched_getaffinity"}

IN_A_CPUSET = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.files.locks.background import map_in_pairs
from rmq_store.threads import processor_count
import threading
who = {answer() for _, answer in map_in_pairs(range(4), lambda _: threading.get_ident())}
print(processor_count(), ProducerConfig().async_sender_threads, len(who))
"""


def test_a_container_with_one_processor_gets_one_thread() -> None:
    """`os.cpu_count()` counts those of the machine, whatever its cpuset leaves to a container."""
    run = subprocess.run([sys.executable, "-c", IN_A_CPUSET], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.split() == ["1", "1", "1"]


def counts(text: str) -> set[str]:
    if not any(name in text for name in COUNTS):
        return set()  # to parse all modules takes seconds
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.name for node in nodes if isinstance(node, ast.alias)}
    return names & COUNTS


def test_one_function_counts_processors() -> None:
    modules = [*(ROOT / "storage").rglob("*.py"), *(ROOT / "connector").rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in modules if counts(path.read_text(encoding="utf-8"))}
    assert found == {"storage/rmq_store/threads.py"}


@pytest.mark.parametrize(
    "text", ["import os\nos.cpu_count()", "from multiprocessing import cpu_count", "os.sched_getaffinity(0)"]
)
def test_each_way_to_count_them_is_recognised(text: str) -> None:
    assert counts(text)
