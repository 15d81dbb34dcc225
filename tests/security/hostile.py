"""Two hundred names that must never become a path outside of a store, and fingerprints of what lies around one."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

_BASES = (
    "../evil", "../../evil", "../../../../tmp/evil", "/tmp/evil", "/etc/passwd", "./evil",
    "a/../../evil", "a/b", "a//b",
    "a/./b", "..", ".", "...", "~", "~root", "~/evil", "$HOME", "${HOME}", "`id`", "$(id)", "; id",
    "| id", "&& id", "> x",
    "evil\n", "\nevil", "a\nb", "a\rb", "a\tb", "a\0b", "\0", "evil\0.json", "a b", " a", "a ", "",
    " ", "-", "--help",
    "\\..\\evil", "..\\evil", "C:\\evil", "\\\\host\\share", "file:///tmp/evil", "http://evil/", "%2e%2e%2fevil",
    "..%2fevil", "%00", "..%c0%af", "..;/evil", "a:b", "a*b", "a?b", "a[b]", "a{b}", "a'b",
    'a"b', "a\\b", "a@b", "a#b",
    "a,b", "a;b", "a=b", "a+b", "a!b", "a~b", "a^b", "a`b", "a<b", "a(b)", "a.b", ".hidden",
    "evil.tmp", "topics.json",
    "Ｔｏｐｉｃ", "．．／evil", "․․/evil", "‥/evil", "∕evil", "a⁄b", "ı", "İ", "ſ", "К", "Ⅷ", "１２３", "٣",
    "é", "e\u0301", "ñ",
    "中文", "😀", "\u202eevil", "\u200b", "a\u200bb", "\ufeffa", "\u2028", "\u2029", "\x85",
    "\x1b[31mred", "\x1b]0;t\x07",
    "\x08\x08", "\x7f", "\x01", "\x02", "a\x01b", "\ud800", "a\udfffb", "\udcff", "x" * 128, "x" * 256, "x" * 5000,
    "../" * 50 + "evil", "a/" * 60, "%RETRY%../evil", "%RETRY%/evil", "%DLQ%../evil", "%DLQ%\n",
    "%RETRY%" + "x" * 300,
    "%RETRY%%RETRY%/..", "%LMQ%../evil", "%LMQ%../../evil", "%LMQ%/evil", "%LMQ%/", "%LMQ%a/../../evil", "%LMQ%..",
    "%LMQ%.", "%LMQ%\n", "%LMQ%\0", "%LMQ%..\\evil", "%LMQ%" + "x" * 300, "%LMQ%%LMQ%/..", "%LMQ%%RETRY%../evil",
    "%RETRY%%LMQ%../evil", "%DLQ%%LMQ%../evil", "rmq_sys_../evil", "SCHEDULE_TOPIC_XXXX/..", "{}", "{0}", "%s%s%n",
    "%(x)s", "{{7*7}}", "<b>",
    "[red]a[/red]", "null\0", "CON/", "a\u0000", "../pyrmq/store.json", "../config/topics.json",
    "../../lock", "../abort",
)  # fmt: skip
COUNT = 200


def names() -> list[str]:
    """The corpus, and random mixtures of it up to COUNT."""
    dice = random.Random(200)
    found = list(dict.fromkeys(_BASES))
    while len(found) < COUNT:
        pieces = [dice.choice(_BASES)[: dice.randrange(1, 9)] for _ in range(3)]
        mixed = "".join(pieces) + dice.choice(("/", "\n", "é", "\0"))
        if mixed not in found:
            found.append(mixed)
    return found


# Names by RocketMQ's rule, and harmless: no dot and no slash.
LEGAL = {"-", "--help", "%00", "%2e%2e%2fevil", "%s%s%n"}

OTHER_KINDS = (None, 5, 1.5, b"bytes", ("a",), True, object())


def around(root: Path) -> set[str]:
    """Everything that lies beside `root`, with modes, sizes and times of change."""
    found = set()
    for directory, folders, files in os.walk(root.parent):
        here = Path(directory)
        if here == root:
            folders.clear()
            continue
        for name in [*folders, *files]:
            state = (here / name).lstat()
            if here / name != root:
                what = (0, 0) if stat.S_ISDIR(state.st_mode) else (state.st_size, state.st_mtime_ns)
                found.add(f"{here / name} {state.st_mode:o} {what}")
    return found
