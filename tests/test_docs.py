"""What the documents say, compared with the project: links, examples, options, bytes on disk, names of commands."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from layers import FOLDERS, LAYERS
from page_sections import IMAGE, LINK, sections
from pyspark_rmq import option_docs
from pyspark_rmq.schema import schema
from rmq_store.broker.metadata import leases
from rmq_store.cli import commands
from rmq_store.files import progress
from rmq_store.files.locks import state_page
from rmq_store.format.frames import frame_check
from rmq_store.format.tables import checkpoint
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.views import consume_queue, index
from rmq_store.kinds import KINDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        page
        for pattern in ("*.md", "docs/*.md", "docs/adr/*.md", "docs/zh/*.md", "examples/**/*.md")
        for page in ROOT.glob(pattern)
    ],
    key=lambda page: str(page.relative_to(ROOT)),
)
# The blocks of the Chinese pages are those of the English ones: test_chinese_pages.py.
ENGLISH = [page for page in PAGES if page.parent != ROOT / "docs" / "zh"]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    return PYTHON_BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in [*LINK.findall(text), *IMAGE.findall(text)]:
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        assert not anchor or anchor in sections(found.read_text(encoding="utf-8")), target


def test_the_page_of_columns_says_which_bit_a_decompressed_body_clears() -> None:
    """It said that none is."""
    lines = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith("| `sysFlag` | int | no |"))
    assert f"bit 0x{int(frame_check.SysFlag.COMPRESSED):x} (`COMPRESSED_FLAG`) is cleared" in row
    assert f"(0x{frame_check.COMPRESSION_MASK:x}) stay" in row


def test_the_page_of_stores_has_what_the_code_says() -> None:
    text = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
    kinds_shown, unchecked = text.split("## What `rmq verify` does not look at")
    for kind in KINDS:
        told = f"{kind.what[0].upper()}{kind.what[1:]}. {kind.advice}"
        assert f"| {kind.name} | {kind.sign} | {kind.effect.value} | {told} |" in kinds_shown
        assert not kind.unchecked or f"| {kind.name} | {kind.unchecked} |" in unchecked
    rows = [line.split(" | ")[0].removeprefix("| ") for line in kinds_shown.splitlines() if line.count(" | ") == 3]
    assert rows == ["kind", *(kind.name for kind in KINDS)]


def test_every_page_is_in_the_index() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed


def test_the_tour_leads_to_every_folder() -> None:
    """Of the parts that a reader takes for one thing, the clients, the command and the kits, to the part."""
    as_a_whole = {"rmq_store.client", "rmq_store.cli", "rmq_store.reliable", "rmq_store.bridge"}
    wanted = as_a_whole | {f"rmq_store.{part}" for part in LAYERS if f"rmq_store.{part}" not in FOLDERS}
    wanted |= {f"{part}.{folder}" for part in FOLDERS.keys() - as_a_whole for folder in FOLDERS[part] if folder != "."}
    links = LINK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert wanted - {link.partition("/")[2].removesuffix(".py").replace("/", ".") for link in links} == set()


def test_every_decision_is_in_the_list_of_decisions_once() -> None:
    folder = ROOT / "docs" / "adr"
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \|", text, re.MULTILINE)
    assert sorted(name for _, name in rows) == sorted(page.name for page in folder.glob("0*.md"))
    assert all(name.startswith(f"{number}-") for number, name in rows)
    assert [number for number, _ in rows] == sorted({number for number, _ in rows})


@pytest.mark.parametrize("page", [page for page in ENGLISH if python_blocks(page)], ids=name_of)
def test_examples_without_spark_give_what_they_show(page: Path) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    said: list[str] = []
    for number, block in enumerate(python_blocks(page)):
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, {}, f"{page.name} block {number}", str(page), 0)
            runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def table_rows(page: Path, heading: str) -> dict[str, str]:
    """Column name -> type, of all tables below a heading of docs/columns.md."""
    text = page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {name: kind.strip() for name, kind in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)}


def test_the_page_of_columns_has_each_column_of_the_source_with_its_type() -> None:
    shown = table_rows(ROOT / "docs" / "columns.md", "Reading")
    assert shown == {field.name: field.dataType.simpleString() for field in schema.READABLE}


def test_the_page_of_columns_has_each_column_that_the_sink_uses_with_its_types() -> None:
    shown = table_rows(ROOT / "docs" / "columns.md", "Writing")
    assert shown == {
        name: " or ".join(kind.simpleString() for kind in kinds) for name, kinds in schema._SINK_TYPES.items()
    }
    shown = table_rows(ROOT / "docs" / "columns.md", "Sending back")
    assert shown == {field.name: field.dataType.simpleString() for field in schema._SEND_BACK_FIELDS}


def test_every_python_block_is_run_by_a_test() -> None:
    """One with prompts is; the one of the README is; an excerpt of a file in examples/ is, with that file."""
    without_prompts = [(page, block) for page in ENGLISH for block in python_blocks(page) if ">>>" not in block]
    examples = [file.read_text(encoding="utf-8") for file in (ROOT / "examples").rglob("*.py")]
    others = [(page, block) for page, block in without_prompts if not any(block in text for text in examples)]
    assert [page.name for page, _ in others] == ["README.md"]
    assert len(others[0][1].splitlines()) <= 15


def worker_environment(scratch: Path) -> dict[str, str]:
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("storage", "connector")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(scratch),
    }


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_first_example_of_the_readme_runs_as_it_stands(scratch: Path) -> None:
    block = next(block for block in python_blocks(ROOT / "README.md") if ">>>" not in block)
    code = block.replace('"/data/', f'"{scratch}/')
    settings = "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell"
    environment = worker_environment(scratch) | {"PYSPARK_SUBMIT_ARGS": settings}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=scratch, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if "bill" in line]
    shown = [[cell.strip() for cell in line] for line in lines]
    assert sorted(shown) == [["ORD-1", "bill for two teas"], ["ORD-2", "bill for one milk"]]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recipes_of_the_spark_guide_store_what_they_say(scratch: Path) -> None:
    settings = "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "recipes.py")],
        cwd=scratch,
        env=worker_environment(scratch) | {"PYSPARK_SUBMIT_ARGS": settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if re.match(r"[\w ]+: ", line)]
    assert said == [
        "Totals: [('open', '2'), ('paid', '2')]",
        "Paid: [('ORD-0', 'order 0'), ('ORD-3', 'order 3')]",
        "Open: [('ORD-1', 'order 1'), ('ORD-2', 'order 2')]",
        "Reminders: [('ORD-1', 'please pay for order 1'), ('ORD-2', 'please pay for order 2')]",
        "Notes: [('ORD-9', 'from a thread')]",
        "dead letters: ['ORD-1', 'ORD-2']",
        "redriven: ['REDRIVEN']",
        "lag: 4 messages read, 0 behind",
        "failed with: LookupError: no such customer",
    ]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_demo_explains_itself_and_leaves_nothing_behind(scratch: Path) -> None:
    elsewhere = scratch / "elsewhere"
    temporary = scratch / "temporary"
    elsewhere.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        cwd=elsewhere,
        env=worker_environment(temporary),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "Files of the broker's store that these queries changed: 0." in said
    assert "It has read 2507 messages" in said
    assert "Messages read: 0." in said
    assert "2210 enriched orders" in said
    assert "own-store: clean" in said
    if shutil.which("mvn") and shutil.which("javac"):
        assert "Sent by Java: 1. Read by Spark: 1." in said
        assert "Statuses that Java got: SEND_OK. Orders that Spark has read: 60." in said
        assert said.count("own-store: clean") == 2
    else:
        assert "This part is left out:" in said
    assert "Traceback" not in said and "WARN" not in said
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in temporary.iterdir() if "demo" in path.name] == []


def test_the_option_table_is_the_one_that_the_code_has() -> None:
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == option_docs.render(), (
        "python -m pyspark_rmq.option_docs docs/options.md"
    )


def test_make_targets_and_commands_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands.add_plugins()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE)) <= targets, page.name
        assert set(re.findall(r"`rmq ([A-Za-z]+)", text)) <= set(commands.commands), page.name


def section(title: str) -> str:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    return re.split(r"^#+ ", text.split(f"{title}", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def drawn(title: str) -> list[tuple[int, str, int]]:
    """(first byte, name, size) of every field in the drawings of a section."""
    fields = []
    for at, row in re.findall(r"^ +(\d+) \|(.*)\|", section(title), re.MULTILINE):
        position = int(at)
        for name, size in re.findall(r"(\w+) +(\d+)\b", row):
            fields.append((position, name, int(size)))
            position += int(size)
    return fields


def fields_of(*dtypes: np.dtype) -> list[tuple[int, str, int]]:
    return [(start, name, field.itemsize) for dtype in dtypes for name, (field, start) in (dtype.fields or {}).items()]


def documented(module_doc: str | None) -> list[tuple[int, str, int]]:
    """(first byte, name, size) of the rows `  0-7   magic   ...` in a docstring."""
    rows = re.findall(r"^ +(\d+)-(\d+) +(\w+)", module_doc or "", re.MULTILINE)
    return [(int(first), name, int(last) - int(first) + 1) for first, last, name in rows]


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("### 2.1 Commit log", fields_of(frame_check.HEADER)),
        ("### 2.3 Consume queue", fields_of(consume_queue.ENTRY)),
        ("### 2.4 Index", fields_of(index.HEADER, index.ENTRY)),
        ("### 2.5 Checkpoint", fields_of(checkpoint.FIELDS)),
        ("### 3.2 `pyrmq/state`", [(8 * number, word, 8) for number, word in enumerate(state_page.WORDS)]),
        ("### 3.3 `pyrmq/progress`", documented(progress.__doc__)),
    ],
)
def test_drawings_have_the_fields_of_the_code(title: str, fields: Sequence[tuple[int, str, int]]) -> None:
    assert fields
    assert drawn(title) == list(fields)


def test_the_drawing_of_a_lease_fits_its_module() -> None:
    starts = re.findall(r"^ +(\d+)(?:-\d*)? {2,}", leases.__doc__ or "", re.MULTILINE)
    assert [at for at, _, _ in drawn("### 3.7 Leases")] == [int(start) for start in starts]
    note, topics = drawn("### 3.7 Leases")[-2:]
    assert note[0] + note[2] == topics[0] == leases._NOTE_END
    assert topics[2] == leases._TOPICS_LENGTH_MAX


def test_the_columns_of_a_staged_file_are_those_of_its_schema() -> None:
    assert re.findall(r"^\| `(\w+)` \|", section("### 3.6 Staged files"), re.MULTILINE) == ENCODED_SCHEMA.names


def test_the_modules_that_the_design_of_the_mirrors_lists_exist() -> None:
    page = (ROOT / "docs" / "kafka-design.md").read_text(encoding="utf-8")
    bridge = ROOT / "storage" / "rmq_store" / "bridge"
    cells = re.findall(r"^\| (`[a-z_]+\.[a-z_]+`.*?) \|", page, re.MULTILINE)
    assert len(cells) > 20
    for cell in cells:
        folder = ""
        for name in re.findall(r"`([a-z_.]+)`", cell):
            folder = name.rpartition(".")[0] or folder
            assert (bridge / folder / f"{name.rpartition('.')[2]}.py").is_file(), name
    (folders,) = re.findall(r"imports only from folders above it: ([a-z_, ]+)\.", page)
    assert sorted(folders.split(", ")) == sorted(path.parent.name for path in bridge.glob("*/__init__.py"))
