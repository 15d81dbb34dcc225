"""A file of JSON for each kill, below build/: a run goes on where it stopped, and tables are made of them.

Only kills of the sink as it is now count: a file names the state of its sources.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.cluster.kills.plan import FOUND_POINTS, Kill

ROOT = Path(__file__).resolve().parents[4]
DIRECTORY = ROOT / "build" / "kills"
SINK = ("storage/rmq_store/client/cluster_sink", "storage/rmq_store/remoting", "tests/helpers/cluster/kills")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Result:
    """What a kill and the repetition of its batch led to. `found`: rows of the batch that were stored already.
    `redelivered`: delayed rows that a killed broker delivered once more, though it holds them once.
    """

    version: str
    victim: str
    point: str
    query: str
    rows: int
    found: int
    lost: int
    duplicated: int
    late: int
    redelivered: int
    seconds: float
    sources: str = ""

    @property
    def counts(self) -> bool:
        """Whether the kill met what it was meant for."""
        return self.point not in FOUND_POINTS or self.found > 0


class Results:
    """The results of a run in a directory."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self._sources = sources_now()

    def of(self, kill: Kill) -> Result | None:
        """The result of a kill that counts; None: it is still to be made."""
        file = self._directory / f"{kill.name}.json"
        found = Result(**json.loads(file.read_text())) if file.exists() else None
        return found if found is not None and found.sources == self._sources else None

    def add(self, kill: Kill, result: Result) -> None:
        """Write a result down; one that does not count, beside the others."""
        self._directory.mkdir(parents=True, exist_ok=True)
        name = kill.name if result.counts else f"uncounted-{kill.name}"
        file = self._directory / f"{name}.json"
        file.with_suffix(".new").write_text(json.dumps(asdict(result) | {"sources": self._sources}, indent=1))
        file.with_suffix(".new").rename(file)

    def all(self) -> list[Result]:
        """All results of the sink as it is now, also those that do not count."""
        found = [Result(**json.loads(file.read_text())) for file in sorted(self._directory.glob("*.json"))]
        return [one for one in found if one.sources == self._sources]

    def counted(self) -> Counter[tuple[str, str]]:
        """How many kills count, by victim and point."""
        return Counter((one.victim, one.point) for one in self.all() if one.counts)


def sources_now(root: Path = ROOT, directories: tuple[str, ...] = SINK) -> str:
    """A digest of what is tested: of the program, so that a better docstring or comment makes no kill void."""
    digest = hashlib.sha256()
    for directory in directories:
        for file in sorted((root / directory).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + _program(file.read_text()).encode())
    return digest.hexdigest()[:10]


def _program(source: str) -> str:
    """Its statements without comments, layout and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
