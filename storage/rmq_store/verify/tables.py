"""Tables and settings: whether the store can be opened with them, and entries in them that nobody can use.

    config/<name>.json    RocketMQ's JSON, integer keys without quotes; if it is bad <name>.json.bak is read
    pyrmq/store.json      sizes and settings of a store of this engine

Source of the rules: ConfigManager#load, and `rmq_store.broker.metadata.json_table`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn

from rmq_store import kinds

from .entries import LongNumber, members, odd_entries
from .files import other_kind, read_start
from .known import deleted_topics, development_files, is_ours
from .report import Ledger

TABLE_BYTES_MAX = 64 << 20
STORE_FORMAT = 1
MISSING = "missing"
NAMED = 3
DIGITS_MAX = 20

Table = dict[str, object]

# A string, which is left as it is (one without an end reaches up to the end of the text), or a key that is a number.
STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|([{,]\s*+)(-?+[0-9]++)(?=\s*+:)', re.DOTALL)

QUEUE_ENDS = "pyrmq/queue_ends.json"
# Everything below `pyrmq/`, and the lock, that a writer opens.
OWN_FILES = (
    "lock", "pyrmq/state", "pyrmq/progress", QUEUE_ENDS, "pyrmq/store.json", "pyrmq/kept.json", "pyrmq/units.json",
    "pyrmq/append.lock", "pyrmq/flush.lock", "pyrmq/config.lock",
)  # fmt: skip
# Of this engine; no table ever has them.
OWN_TOPIC_PREFIX = "rmq_sys_pyrmq_"
# TopicValidator.java: what a broker makes for itself, and every opening makes again.
SYSTEM_TOPIC = re.compile(r"rmq_sys_.*|RMQ_SYS_.*|SCHEDULE_TOPIC_XXXX|TBW102|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT")


def check_tables(ledger: Ledger) -> None:
    """Report unreadable tables and unreadable files in `pyrmq/`, and a lost table of topics."""
    root, note = ledger.root, ledger.report.notes.append
    for name in ("config", "pyrmq"):
        if (root / name).is_symlink():
            text = "a symbolic link: nobody opens the store for writing; move the directory itself there"
            ledger.problem(name, 0, text)
    for name in OWN_FILES:
        ledger.no_file(root / name, "put the file itself there")
    ledger.map_once(QUEUE_ENDS)  # bytes that the disk does not give back are damage: no writer can open the store
    if ledger.table.why_none:
        text = "files of queues that get lost are not missed; the next clean stop writes it again"
        note(f"{QUEUE_ENDS}: {ledger.table.why_none}: {text}")
    if isinstance(why := _store_file(root), str) and why != MISSING:
        ledger.problem("pyrmq/store.json", 0, f"{why}; the store cannot be opened: see `rmq repair`")
    for path, why in development_files(root).items():
        ledger.problem(path, 0, why)
    names = _names(root / "config")
    for name in names:
        path = f"config/{name}"
        table, backup = load(root / path), load(root / f"{path}.bak")
        if ledger.no_file(root / path, "put the file itself there"):
            continue
        if isinstance(table, str) and isinstance(backup, str):
            ledger.problem(path, 0, f"{table}, and its .bak is no better ({backup}): see `rmq repair`")
        elif isinstance(table, str):
            note(f"{path}: {table}: what was in it before its last change is read from its .bak")
        elif isinstance(backup, str) and backup != MISSING:
            note(f"{path}.bak: {backup}; the table itself is whole")
        for text in odd_entries(name, table if isinstance(table, dict) else backup if isinstance(backup, dict) else {}):
            note(f"{path}: {text}: kept as it is, and left out of lists")
    if "topics.json" not in names and _has_topics(root) and kinds.tables_are_in_rocksdb(root) is None:
        text = "missing, and so is its .bak: topics are read by their exact names only; `rmq repair` finds them again"
        if is_ours(root) or names:
            ledger.problem("config/topics.json", 0, text)
        else:
            note(f"config/topics.json: {text}. A broker may keep its tables elsewhere")


def load(path: Path) -> Table | str:
    """The table in a file, or why there is none. Raises PermissionError: a file that this user may not read is not
    damaged.
    """
    try:
        raw = read_start(path, TABLE_BYTES_MAX + 1)
    except FileNotFoundError:
        return MISSING
    except PermissionError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not raw or len(raw) > TABLE_BYTES_MAX:
        return "empty" if not raw else f"larger than {TABLE_BYTES_MAX} bytes"
    try:
        table = _parse(raw.decode())
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return table if isinstance(table, dict) else "no JSON object"


def _parse(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=_integer, object_pairs_hook=members)
    except ValueError:  # quotes for keys that are numbers: for most tables that would be wasted
        quoted = STRING_OR_KEY.sub(lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text)
        return json.loads(quoted, parse_constant=_refuse, parse_int=_integer, object_pairs_hook=members)


def _integer(text: str) -> int | LongNumber:
    return int(text) if len(text) <= DIGITS_MAX else LongNumber(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _names(directory: Path) -> list[str]:
    """The names of the tables in `config/`, those included of which only a backup is left."""
    names = {path.name.removesuffix(".bak") for path in directory.iterdir()} if directory.is_dir() else set[str]()
    return sorted(name for name in names if name.endswith(".json"))


def _has_topics(root: Path) -> bool:
    directory = root / "consumequeue"
    topics = directory.iterdir() if directory.is_dir() else ()
    return any(other_kind(topic) == "a directory" and not SYSTEM_TOPIC.fullmatch(topic.name) for topic in topics)


def check_unlisted(ledger: Ledger, newest: dict[bytes, int]) -> None:
    """Report topics that have queues, but no entry in a readable table. `newest`: by topic, the log offset of its
    newest message. Queues whose messages are older than the deletion of their topic are remains of that deletion.
    """
    listed = configured_topics(ledger.root)
    if listed is None or kinds.tables_are_in_rocksdb(ledger.root):
        return
    deleted = deleted_topics(ledger.root)
    unknown = {name.decode(errors="backslashreplace"): end for name, end in newest.items() if name not in listed}
    found = {name: at for name, at in unknown.items() if not name.startswith(OWN_TOPIC_PREFIX)}
    lost = sorted(name for name, at in found.items() if at >= deleted.get(name, 0))
    users = [name for name in lost if not SYSTEM_TOPIC.fullmatch(name)]
    if users:
        text = f"topics with queues are not in it, and are read by their exact names only: {_some(users)}"
        ledger.problem("config/topics.json", 0, f"{text}; `rmq repair` puts them into it")
    if system := [name for name in lost if name not in users]:
        text = f"system topics with queues are not in it, as some brokers leave them: {_some(system)}"
        ledger.report.notes.append(f"config/topics.json: {text}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def configured_topics(root: Path) -> set[bytes] | None:
    """The topics in topics.json, None if they cannot be read. PermissionError."""
    topics = _topics(root)
    return None if topics is None else {topic.encode(errors="surrogatepass") for topic in topics}


def _topics(root: Path) -> Table | None:
    for name in ("config/topics.json", "config/topics.json.bak"):
        table = load(root / name)
        topics = table.get("topicConfigTable") if isinstance(table, dict) else None
        if isinstance(topics, dict):
            return topics
    return None


def topics_with_batch_queues(root: Path) -> frozenset[bytes]:
    """Topics whose queues are not in `consumequeue/`, by their attributes or directories. PermissionError."""
    found = set(kinds.topics_with_batch_queues(root))
    for topic, entry in (_topics(root) or {}).items():
        attributes = entry.get("attributes") if isinstance(entry, dict) else None
        if isinstance(attributes, dict) and kinds.kind_by_attributes(attributes) is kinds.BATCH_QUEUES:
            found.add(topic)
    return frozenset(topic.encode(errors="surrogatepass") for topic in found)


def _store_file(root: Path) -> Table | str:
    found = load(root / "pyrmq" / "store.json")
    if isinstance(found, str):
        return found
    version = found.get("format")
    if not isinstance(version, int):
        return "no description of a store"
    if version > STORE_FORMAT:  # of what a newer version writes nothing else has to be as we know it
        return {}
    is_whole = isinstance(found.get("identity"), str) and isinstance(found.get("settings"), dict)
    return found if is_whole else "no description of a store"


def store_settings(root: Path) -> Table:
    """The settings in store.json, by RocketMQ's names; {} if it has none. PermissionError."""
    found = _store_file(root)
    settings = found.get("settings") if isinstance(found, dict) else None
    return settings if isinstance(settings, dict) else {}
