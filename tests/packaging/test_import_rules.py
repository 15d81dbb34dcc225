"""Who may import whom, read off the source.

A layer that reaches up, or a connector that reaches into the engine's inside, is found here before it has grown roots.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from layers import FOLDERS, FREE, LAYERS, REQUESTS_ARE_MADE_IN, figure, page_with_figure
from rmq_store import cluster, reliable
from rmq_store.cli import plugin

ROOT = Path(__file__).resolve().parents[2]
ROOTS = {"rmq_store": ROOT / "storage", "pyspark_rmq": ROOT / "connector"}

FOLDER_MODULES_MAX = 14
RUN_TIME = {"numpy", "pyarrow"}
COMMAND = {"click", "rich"}
RELIABLE = {"sqlalchemy", "redis"}  # of the extra of this name
# Of the extra [kafka].
BRIDGE = {"kafka"}
# The extra [grpc].
GRPC = {"google", "grpc"}
# pytest loads its plugins itself, so it is there when the plugin is.
PLUGIN = {"pytest"}
NO_IMPORT = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
NO_CALL = {"eval", "exec", "compile", "__import__"}
REQUEST_HEADER = re.compile(r"[A-Z]\w*RequestHeader(V2)?")
EARLY_DATACLASS = "dataclasses.dataclass"
# Modules of the engine that the connector may import, beside public names.
AS_GOOD_AS_PUBLIC = ("errors", "arguments", "extension", "real_time")
# It pickles functions by value, and unpickles nothing.
NO_UNPICKLING = "pyspark.cloudpickle.register_pickle_by_value"
# What would make `format` and `protocol` do I/O or look at a clock.
PURE = ("format", "protocol")
IMPURE = {"os", "io", "mmap", "fcntl", "pathlib", "shutil", "tempfile", "subprocess", "time", "random", "secrets"}


def modules(package: str) -> list[tuple[str, Path]]:
    """(dotted module name, file) of everything in the package; a package's own name for its __init__.py."""
    found = []
    for path in sorted((ROOTS[package] / package).rglob("*.py")):
        parts = list(path.relative_to(ROOTS[package]).with_suffix("").parts)
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imported_by(node: ast.AST, package: list[str]) -> Iterator[tuple[str, int]]:
    """The same of one statement in a module of `package`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}", node.lineno


def at_import_time(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported: none of functions, and not what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node = ast.Module(body=node.orelse, type_ignores=[])
        if isinstance(node, ast.stmt):
            yield node
        yield from at_import_time(node)


@dataclass(frozen=True, slots=True)
class Source:
    """What the rules ask of one module. Targets of imports are absolute: relative ones and `from package import module`
    are resolved.
    """

    imports: list[tuple[str, int]]
    loads: list[str]
    """The targets that the import of the module imports."""

    calls: list[tuple[str, int]]
    """Calls that run code, or unpickle."""

    of_socket: list[str]
    """The attributes of the module `socket` that it uses."""

    headers: list[tuple[str, int]]
    """Headers of requests that it makes."""


def read(name: str, path: Path) -> Source:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    loads = [target for node in at_import_time(tree) for target, _ in imported_by(node, package)]
    source = Source([], loads, [], [], [])
    for node in ast.walk(tree):
        source.imports.extend(imported_by(node, package))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in NO_CALL:
                source.calls.append((node.func.id, node.lineno))
            made = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
            if REQUEST_HEADER.fullmatch(made):
                source.headers.append((made, node.lineno))
            # numpy.load and friends
            source.calls.extend(("allow_pickle", node.lineno) for word in node.keywords if word.arg == "allow_pickle")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "socket":
            source.of_socket.append(node.attr)
    return source


# To parse 900 modules takes nine seconds: once, and not for each rule.
source = functools.cache(read)


def imports(name: str, path: Path) -> list[tuple[str, int]]:
    """(absolute name of what is imported, line) for a module of the two packages."""
    return source(name, path).imports


def loaded_with(name: str, loads: list[str], known: Collection[str]) -> set[str]:
    """The modules among `known` that the import of this one imports by name."""
    found: set[str] = set()
    for target in loads:
        while target and target not in known:
            target = target.rpartition(".")[0]
        found |= {target} - {"", name}
    return found


def part(dotted: str) -> str:
    """`format` of `rmq_store.format.views.index`; `__init__` of `rmq_store` itself."""
    return dotted.split(".")[1] if "." in dotted else "__init__"


ENGINE = modules("rmq_store")
CONNECTOR = modules("pyspark_rmq")


def imports_of(found: list[tuple[str, Path]]) -> Iterator[tuple[str, Path, str, int]]:
    """(module, its file, absolute name of what it imports, line) of all these modules."""
    assert found
    for name, path in found:
        for target, line in imports(name, path):
            yield name, path, target, line


def test_every_part_of_the_engine_has_a_rule() -> None:
    parts = {part(name) for name, _ in ENGINE}
    assert parts == {*LAYERS, *FREE}, "a new part needs a line in LAYERS, and in docs/design.md"
    assert set().union(*LAYERS.values()) <= parts | {"_native"}, "a part that is not there may be imported"


def test_a_layer_of_the_engine_imports_only_what_lies_below_it() -> None:
    refused = []
    for name, path, target, line in imports_of(ENGINE):
        own = part(name)
        top = target.split(".")[0]
        if top in ("pyspark", "pyspark_rmq", "py4j"):
            refused.append(f"{path}:{line} imports {target}: the engine must work without Spark")
        elif top == "rmq_store" and own not in FREE and part(target) not in LAYERS[own] | {own}:
            refused.append(f"{path}:{line} imports {target}: {own} may import {sorted(LAYERS[own])}")
        elif top in COMMAND and own != "cli":
            refused.append(f"{path}:{line} imports {target}: only the command may")
    assert refused == []


def folder(dotted: str, own: str, packages: Collection[str]) -> str:
    """The folder of a part that a module is in; "." for the modules of the part itself."""
    first, _, rest = dotted.removeprefix(own).removeprefix(".").partition(".")
    return first if rest or f"{own}.{first}" in packages else "."


PACKAGES = {name for name, path in ENGINE + CONNECTOR if path.name == "__init__.py"}


@pytest.mark.parametrize("own", FOLDERS)
def test_folders_of_a_part_import_only_folders_above_them(own: str) -> None:
    order = FOLDERS[own]
    refused, seen = [], set()
    for name, path in ENGINE + CONNECTOR:
        if name == own or not name.startswith(f"{own}."):
            continue
        here = folder(name, own, PACKAGES)
        seen.add(here)
        for target, line in imports(name, path):
            if target.startswith(f"{own}."):
                below = folder(target, own, PACKAGES)
                if below in order and order.index(below) > order.index(here):
                    refused.append(f"{path}:{line} imports {target}: {below} stands below {here}")
    assert refused == []
    assert seen | {"."} == {*order, "."}, "a new folder needs its place in tests/layers.py"


def test_a_folder_holds_as_many_modules_as_one_can_look_over() -> None:
    counts = Counter(name.rpartition(".")[0] for name, path in ENGINE + CONNECTOR if path.name != "__init__.py")
    assert {name: count for name, count in counts.items() if count > FOLDER_MODULES_MAX} == {}


def test_the_figure_of_the_design_shows_the_layers() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert page_with_figure(page) == page, "python tests/layers.py draws it"
    parts = [f"rmq_store.{name}" for name in LAYERS]
    assert all(part in figure() for part in parts)


def test_only_the_seam_of_the_bridge_knows_a_kafka_client() -> None:
    refused = [
        f"{path}:{line} imports {target}"
        for name, path, target, line in imports_of(ENGINE + CONNECTOR)
        if target.split(".")[0] == "kafka" and not name.startswith("rmq_store.bridge.kafka")
    ]
    assert refused == []


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, each importing the one before it; [] if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_no_part_imports_itself_by_way_of_another() -> None:
    assert cycle(LAYERS) == []


def test_no_module_imports_itself_by_way_of_another() -> None:
    """Which of the two came first would decide whether the import works at all."""
    found = dict(ENGINE + CONNECTOR)
    graph = {name: loaded_with(name, source(name, path).loads, found) for name, path in found.items()}
    assert {"rmq_store.errors", "rmq_store.format.text.names"} <= graph["rmq_store.broker.read.query"]
    assert cycle(graph) == []


def test_a_circle_of_imports_is_found_and_what_comes_later_is_none(tmp_path: Path) -> None:
    inside = "try:\n    from p.a import x\nfinally:\n    pass"
    texts = {"a": "from . import b", "b": "if True:\n    import p.c", "c": inside}
    later = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\ndef f():\n    import p.a\n"

    def graph() -> dict[str, set[str]]:
        paths = {f"p.{name}": tmp_path / f"{name}.py" for name in texts}
        for name, path in paths.items():
            path.write_text(texts[name.removeprefix("p.")])
        return {name: loaded_with(name, read(name, path).loads, paths) for name, path in paths.items()}

    assert set(cycle(graph())) == {"p.a", "p.b", "p.c"}
    texts["c"] = later
    assert graph() == {"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": set()}
    assert cycle(graph()) == []


def test_the_engine_uses_only_the_standard_library_and_its_run_time_dependencies() -> None:
    refused = []
    for name, path, target, line in imports_of(ENGINE):
        allowed = sys.stdlib_module_names | RUN_TIME | COMMAND | {"rmq_store"}
        if part(name) == "reliable":
            allowed = allowed | RELIABLE
        if part(name) == "bridge":
            allowed = allowed | BRIDGE
        if name.startswith("rmq_store.server.grpc_"):
            allowed = allowed | GRPC
        if name == "rmq_store.testing":
            allowed = allowed | PLUGIN
        if target.split(".")[0] not in allowed:
            refused.append(f"{path}:{line} imports {target}")
    assert refused == []


def test_formats_and_protocols_do_no_io_and_see_no_clock() -> None:
    pure = [(name, path) for name, path in ENGINE if part(name) in PURE]
    assert {part(name) for name, _ in pure} == set(PURE)
    refused = [
        f"{path}:{line} imports {target}"
        for _, path, target, line in imports_of(pure)
        if target.split(".")[0] in IMPURE
    ]
    assert refused == []
    # The socket module also holds the text forms of addresses; nothing else of it is for a format.
    used = [(str(path), attribute) for name, path in pure for attribute in source(name, path).of_socket]
    assert [place for place in used if not place[1].startswith(("AF_", "inet_"))] == []


def test_a_question_to_a_broker_is_made_in_one_place() -> None:
    """Each has its quirks by version, and they are found where it is made."""
    made_in = {
        name: source(name, path).headers for name, path in ENGINE + CONNECTOR if source(name, path).headers
    }
    refused = [
        f"{name}:{line} makes a {header}: a function of remoting/questions does, or tests/layers.py lists the module"
        for name, made in made_in.items()
        for header, line in made
        if not name.startswith(REQUESTS_ARE_MADE_IN)
    ]
    assert refused == []
    unused = [place for place in REQUESTS_ARE_MADE_IN if not any(name.startswith(place) for name in made_in)]
    assert unused == [], "the list is too long"


def test_no_question_is_made_twice() -> None:
    """Each header of `remoting.questions` has one function that makes it."""
    made = Counter(
        header
        for name, path in ENGINE
        for header, _ in source(name, path).headers
        if name.startswith(REQUESTS_ARE_MADE_IN[0])
    )
    assert made
    assert {header: count for header, count in made.items() if count > 1} == {}
    elsewhere = {
        header
        for name, path in ENGINE + CONNECTOR
        for header, _ in source(name, path).headers
        if not name.startswith((REQUESTS_ARE_MADE_IN[0], "rmq_store.server"))
    }
    assert elsewhere & made.keys() == set()


def test_no_wait_is_measured_by_a_clock_that_a_test_freezes() -> None:
    """freezegun replaces `time.monotonic`; what waits uses `rmq_store.real_time`."""
    frozen = re.compile(r"(?<![\w`])time\.monotonic|from time import .*monotonic")
    found = [
        f"{path}:{number}"
        for root in ROOTS.values()
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if frozen.search(line) and path.name != "real_time.py"
    ]
    assert found == []


def test_no_test_replaces_a_wait_of_the_whole_process() -> None:
    """`setattr(module.time, "sleep", ...)` replaces it in all threads: one of another test spins, and is counted."""
    replaced = re.compile(r'setattr\([\w.]*\btime, "(sleep|monotonic)"')
    found = [
        f"{path}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if replaced.search(line) and path != Path(__file__) and "real_time" not in line
    ]
    assert found == []


def test_only_the_file_layer_takes_locks() -> None:
    """One flock or POSIX lock taken elsewhere would be lost, silently, when any descriptor of its file is closed.

    A check asks who holds one, and takes none; it uses nothing of the engine.
    """
    refused = [
        f"{path}:{line} imports {target}"
        for name, path, target, line in imports_of(ENGINE)
        if target.split(".")[0] == "fcntl" and part(name) != "files" and name != "rmq_store.verify.in_use"
    ]
    assert refused == []


def test_the_connector_uses_only_public_names_of_the_engine() -> None:
    """`from rmq_store import Store` is public; of its modules, `errors` is, and AS_GOOD_AS_PUBLIC are as good. So are
    the names in `__all__` of `rmq_store.reliable` and `rmq_store.cluster`, and for commands those of
    `rmq_store.cli.plugin`.
    """
    public = {f"{module.__name__}.{name}" for module in (reliable, plugin, cluster) for name in module.__all__}
    refused = []
    for _, path, target, line in imports_of(CONNECTOR):
        pieces = target.split(".")
        if pieces[0] != "rmq_store" or target in public:
            continue
        if len(pieces) > 1 and pieces[1] in {*LAYERS, *FREE} and pieces[1] not in AS_GOOD_AS_PUBLIC:
            refused.append(f"{path}:{line} imports {target}, which is inside the engine")
    assert refused == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    """Bytes from a store are data; one `pickle.loads` would turn a copied store into somebody's program."""
    refused = [
        f"{path}:{line} imports {target}"
        for _, path, target, line in imports_of(ENGINE + CONNECTOR)
        if NO_IMPORT & set(target.split(".")) and target != NO_UNPICKLING
    ]
    refused += [
        f"{path}:{line} calls {called}"
        for name, path in ENGINE + CONNECTOR
        for called, line in source(name, path).calls
    ]
    assert refused == []


def test_a_dataclass_of_the_engine_has_late_methods() -> None:
    """A start imports 250 of them: with compiled methods they would take a third of it. The verifier, and what tells
    kinds of stores, import nothing of the engine.
    """
    early = {name for name, path in ENGINE for target, _ in imports(name, path) if target == EARLY_DATACLASS}
    assert {name for name in early if not name.startswith(("rmq_store.verify.", "rmq_store.kinds."))} == {
        "rmq_store.lazy.dataclasses"
    }


def loaded_by(statement: str) -> set[str]:
    """The packages that a fresh interpreter has after `statement`, without those that it always has."""
    return {module.split(".")[0] for module in modules_loaded_by(statement)}


def modules_loaded_by(statement: str) -> set[str]:
    """The same, as whole names of modules."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    roots = [str(root) for root in ROOTS.values()]
    code = f"import sys; sys.path[:0] = {roots!r}; {script}"
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_the_connector_loads_nothing_heavy() -> None:
    """Spark's look-up imports every `pyspark_*` module in one process, and one that fails takes all sources with it.

    What pyspark itself loads is not counted: the look-up has it already.
    """
    loaded = loaded_by("import pyspark.sql.datasource; before = set(sys.modules); import pyspark_rmq")
    assert "pyspark_rmq" in loaded
    assert not loaded & {"numpy", "pyarrow", "pandas", "rmq_store", "click", "rich"}


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "pyarrow", "pandas", "rmq_store"}:
            raise ImportError(f"blocked: {name}")
sys.meta_path.insert(0, Blocker())
"""


def test_the_connector_still_imports_where_its_dependencies_are_broken() -> None:
    path = f"sys.path.insert(0, {str(ROOTS['pyspark_rmq'])!r})"
    code = "\n".join([BLOCKED, path, "import pyspark_rmq", "print(pyspark_rmq.DefaultSource.name())"])
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "rmq"


def test_importing_the_engine_does_not_load_spark_or_the_command() -> None:
    loaded = loaded_by("from rmq_store import *")
    assert {"rmq_store", "numpy", "pyarrow"} <= loaded
    assert not loaded & {"pyspark", "pyspark_rmq", "py4j", "click", "rich", "pandas"}


def test_a_server_begins_without_the_client_of_a_cluster() -> None:
    """Most servers register nowhere and follow nobody, and each start waits for what is imported."""
    loaded = modules_loaded_by("import rmq_store.server.broker_server")
    assert "rmq_store.server.ha.ha_server" in loaded
    assert not [name for name in loaded if name.startswith(("rmq_store.remoting.cluster", "rmq_store.replica.master"))]


@pytest.mark.parametrize("module", ["rmq_store", "rmq_store.client", "rmq_store.cli", "pyspark_rmq"])
def test_databases_and_kafka_are_loaded_only_with_what_needs_them(module: str) -> None:
    """SQLAlchemy takes as long to load as all of the rest, and is not there without the extra."""
    loaded = loaded_by(f"import {module}; from {module} import *")
    assert module.split(".")[0] in loaded
    assert not loaded & (RELIABLE | BRIDGE)


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert not loaded_by("import rmq_store; dir(rmq_store)") & {"numpy", "pyarrow"}


@pytest.mark.parametrize("key", ["the TAB of a shell", "--help", "--help of a command"])
def test_a_shell_that_asks_the_command_loads_nothing_heavy(key: str) -> None:
    """Completion runs the whole command for every key; numpy and pyarrow would take four times as long as the rest."""
    line = {"--help": ["--help"], "--help of a command": ["queryMsgByKey", "--help"]}.get(key, [])
    words = {} if line else {"_RMQ_COMPLETE": "bash_complete", "COMP_WORDS": "rmq queryMsgBy", "COMP_CWORD": "1"}
    code = f"""
import atexit, sys
sys.path[:0] = [{str(ROOTS["rmq_store"])!r}]
atexit.register(lambda: print("loaded:", *sys.modules))
from rmq_store.cli import commands
commands({line}, prog_name="rmq")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, env=words, timeout=60
    )
    answer, _, loaded = done.stdout.partition("loaded: ")
    assert "queryMsgByKey" in answer
    assert "rmq_store.cli.mqadmin.message" in loaded.split()
    heavy = {"numpy", "pyarrow", "pandas", "rich"} | RELIABLE | BRIDGE
    assert not {module.split(".")[0] for module in loaded.split()} & heavy


def test_the_command_reads_checkpoints_without_spark() -> None:
    loaded = loaded_by("import pyspark_rmq.checkpoint.command, pyspark_rmq.checkpoint.showing")
    assert "pyspark_rmq" in loaded
    assert not loaded & {"pyspark", "py4j", "pandas"}


@pytest.mark.parametrize(
    "statement", ["from rmq_store.format import x", "from ..log import y", "import pyspark", "from .. import broker"]
)
def test_the_reader_of_imports_sees_every_spelling(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def f():\n    {statement}\n")
    ((target, line),) = read("rmq_store.files.module", path).imports
    assert line == 2
    assert target in {"rmq_store.format.x", "rmq_store.log.y", "pyspark", "rmq_store.broker"}
