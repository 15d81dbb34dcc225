"""The language of the documents, as far as a test can judge it, and the modules that they name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")])
# The rules of English sentences are not for these.
CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))
SOURCES = {"rmq_store": ROOT / "storage", "pyspark_rmq": ROOT / "connector"}

# Pages whose turn has not come; conformance.md holds the words of the tests.
NOT_MENDED: frozenset[str] = frozenset()

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CELL_ENDS = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r" *(?:[*-]|\d+\.) +(.*)")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?]) +(?=[A-Z*_`\"(\[])")
_NOUN = re.compile(r"[*_(\"]*(Who|What|Whoever|Whichever|Which|Where)\b")
_IN_A_COMMENT = re.compile(rf"#.*{_NOUN.pattern}")

# `rmq_store.path` is a fixture there.
FIXTURES = {"testing.md"}
LOGGERS = {"pyspark_rmq.dataloss"}
_MODULE = re.compile(r"\b(?:rmq_store|pyspark_rmq)(?:\.\w+)+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def sentences(page: str) -> Iterator[str]:
    """Of paragraphs, list items and cells of tables. Not of code, headings and questions in bold above a paragraph."""
    paragraph: list[str] = []
    for line in [*_CODE.sub("", page).splitlines(), ""]:
        item = None if line.startswith("**") else _ITEM.match(line)
        if paragraph and (item or not line.strip() or line.startswith(("#", "|", "<!--"))):
            yield from _SENTENCE_ENDS.split(" ".join(paragraph))
            paragraph = []
        if line.startswith("|"):
            for cell in _CELL_ENDS.split(line.strip("|")):
                yield from _SENTENCE_ENDS.split(cell.strip())
        elif item:
            paragraph = [item[1]]
        elif line.strip() and not line.startswith(("#", "<!--")) and (paragraph or not line.startswith("    ")):
            paragraph.append(line.strip())


def begins_with_a_noun_clause(sentence: str) -> bool:
    """`What is kept ...`, `Where it lies is ...`; no question, no label, and not `Where it lies, there is ...`."""
    found = _NOUN.match(sentence)
    bare = sentence.rstrip('*_")')
    is_label = sentence.startswith("**") and sentence.endswith("**")
    return bool(found and not bare.endswith("?") and not is_label and not (found[1] == "Where" and "," in sentence))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in NOT_MENDED], ids=name_of)
def test_no_sentence_begins_with_who_what_or_where_as_a_noun(page: Path) -> None:
    """Readers whose first language is another one have to read such a sentence twice."""
    found = [
        sentence for sentence in sentences(page.read_text(encoding="utf-8")) if begins_with_a_noun_clause(sentence)
    ]
    assert found == []


def texts_of_code(source: str) -> Iterator[str]:
    """The docstrings of a module, private ones too, and its comments; lines that follow each other are one comment.
    Those in which no sentence can begin with such a noun are left out: to parse a module takes long.
    """
    if not _NOUN.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    if not _IN_A_COMMENT.search(source):
        return
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        stands_alone = token.line.lstrip().startswith("#")
        if lines and not (stands_alone and token.start[0] == last + 1):
            yield " ".join(lines)
            lines = []
        lines.append(token.string.lstrip("#: "))
        last = token.start[0]
    yield " ".join(lines)


def test_no_docstring_or_comment_begins_a_sentence_with_who_what_or_where_as_a_noun() -> None:
    found = []
    for path in sorted(path for root in SOURCES.values() for path in root.rglob("*.py")):
        for text in texts_of_code(path.read_text(encoding="utf-8")):
            found += [f"{path}: {each}" for each in sentences(text) if begins_with_a_noun_clause(each)]
    assert found == []


def test_comments_and_private_docstrings_are_seen() -> None:
    source = '''"""A module."""

# A store is read. What is
# kept stays.
x = 1  # Who waits

def _f() -> None:
    """Where it lies."""
'''
    seen = [each for text in texts_of_code(source) for each in sentences(text) if begins_with_a_noun_clause(each)]
    assert seen == ["Where it lies.", "What is kept stays.", "Who waits"]


def test_the_check_of_sentences_sees_paragraphs_items_and_cells_and_no_questions() -> None:
    page = """# What a heading asks

What is kept stays. A store is read. Who reads
it waits.

* Where it lies is unknown.
* Where it lies, nothing is.
* Which one?

| What is this? | what a cell holds |
|---|---|
| Whoever writes | It waits. What it wrote stays |

    What is code

```text
What is code
```

**What helped**
"""
    assert [sentence for sentence in sentences(page) if begins_with_a_noun_clause(sentence)] == [
        "What is kept stays.", "Who reads it waits.", "Where it lies is unknown.", "Whoever writes",
        "What it wrote stays",
    ]  # fmt: skip


def is_there(dotted: str) -> bool:
    """Whether a module has that name, or has what the last part of it names."""
    package, *rest = dotted.split(".")
    found = SOURCES[package] / package
    while rest and (found / rest[0]).is_dir():
        found /= rest.pop(0)
    file = found / "__init__.py"
    for ending in (".py", ".pyi"):
        if rest and (found / f"{rest[0]}{ending}").exists():
            file = found / f"{rest.pop(0)}{ending}"
    return not rest or (file.exists() and bool(re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("page", [page for page in [*PAGES, *CHINESE] if page.name not in FIXTURES], ids=name_of)
def test_modules_that_are_named_exist(page: Path) -> None:
    """Pages named modules that had moved. The glossary has the old names, in its second table."""
    text = page.read_text(encoding="utf-8").split("## Old and new names")[0]
    assert sorted(name for name in set(_MODULE.findall(text)) - LOGGERS if not is_there(name)) == []


def test_a_module_that_moved_is_not_there() -> None:
    assert is_there("rmq_store.log.core.units")
    assert is_there("rmq_store.Store.open")
    assert is_there("rmq_store._native")
    assert not is_there("rmq_store.log.units")
    assert not is_there("pyspark_rmq.worker")


def table_rows(page: str, heading: str, columns: int) -> Iterator[list[str]]:
    """Cells of the rows below a heading, without heads of tables."""
    section = (ROOT / page).read_text(encoding="utf-8").split(heading)[1]
    for line in section.splitlines():
        cells = [cell.strip() for cell in _CELL_ENDS.split(line.strip("|"))]
        if line.startswith("|") and len(cells) == columns and not line.startswith("|---"):
            yield cells


def test_the_owners_of_the_outbox_are_all_its_modules() -> None:
    owners: dict[str, list[str]] = {}
    folder = ""
    for first, modules, _ in list(table_rows("docs/reliable-design.md", "## 5. Owners", 3))[1:]:
        folder = first.strip("`") or folder
        owners.setdefault(folder, []).extend(re.findall(r"`(\w+)`", modules))
    root = SOURCES["rmq_store"] / "rmq_store" / "reliable"
    folders = {path.name: path for path in root.iterdir() if (path / "__init__.py").exists()}
    assert {name: sorted(modules) for name, modules in owners.items()} == {
        name: sorted(module.stem for module in path.glob("*.py") if module.stem != "__init__")
        for name, path in folders.items()
    }
