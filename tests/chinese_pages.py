"""The Chinese pages in docs/zh, compared with the English sections that they translate.

    python tests/chinese_pages.py                                   what is stale, missing or different; exit code 1
    python tests/chinese_pages.py renew docs/spark.md#threads       the Chinese text was brought up to date
    python tests/chinese_pages.py renew docs/spark.md#threads --reason "only the English wording changed"

Below the heading of a translated section there is a mark:

    <!-- en: docs/spark.md#threads sha256:0123456789ab zh:0123456789ab pair:0123456789ab reason: ... -->

`sha256` is the digest of the English section for which the Chinese one stands, `zh` that of the Chinese text, both with
white space normalised. `pair` is the digest of both as they were when the Chinese text was written. If the English
digest is a newer one, the pair does not fit, and the mark has to carry a reason. A new section gets the mark
`<!-- en: docs/spark.md#threads -->`; `renew` adds the digests.

A Chinese paragraph is one line: viewers show a line break between two Chinese characters as a space. Names in
backquotes, blocks of code, and figures with a point or a comma are those of the English section.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from page_sections import code_blocks, code_spans, sections

ROOT: Final = Path(__file__).resolve().parents[1]

# Chinese page: {English page: the sections that it translates, or WHOLE}.
WHOLE: Final = ("*",)
PROMISED: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "docs/zh/README.md": {"README.md": WHOLE},
    "docs/zh/getting-started.md": {"docs/getting-started.md": WHOLE},
    "docs/zh/spark.md": {"docs/spark.md": WHOLE},
    "docs/zh/retry-and-dead-letters.md": {
        "docs/python.md": ("consume", "floodbreaker", "redrive"),
        "docs/cookbook.md": (
            "6-my-customer-says-that-the-order-was-never-handled-what-happened-to-it",
            "9-what-is-in-the-dead-letter-queues-and-why",
            "10-how-do-i-have-dead-letters-consumed-again",
        ),
    },
    "docs/zh/cluster.md": {"docs/cluster.md": ("a-rocketmq-cluster", "2-guarantees")},
    "docs/zh/server.md": {
        "docs/server.md": ("a-store-served-to-rocketmqs-clients", "2-guarantees-to-clients", "5-access"),
    },
}

REASON_LENGTH_MIN: Final = 10
_FIGURE: Final = re.compile(r"\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)+")
_COMMENT: Final = re.compile(r"^<!-- en: (.*?) *-->\n", re.MULTILINE)
_MARK: Final = re.compile(
    r"(?P<name>\S+#\S+)"
    r"(?: sha256:(?P<english>[0-9a-f]{12}) zh:(?P<chinese>[0-9a-f]{12}) pair:(?P<pair>[0-9a-f]{12})"
    r"(?: reason: (?P<reason>.+))?)?"
)


class Refused(Exception):
    """A digest is not renewed; the text says what to do."""


@dataclass(frozen=True)
class Mark:
    """What a Chinese section says about its English one; digests are empty until `renew` writes them."""

    name: str
    english: str = ""
    chinese: str = ""
    pair: str = ""
    reason: str = ""

    def __str__(self) -> str:
        reason = f" reason: {self.reason}" if self.reason else ""
        return f"<!-- en: {self.name} sha256:{self.english} zh:{self.chinese} pair:{self.pair}{reason} -->\n"


@dataclass(frozen=True)
class Translated:
    """A section of a Chinese page, without its mark; `comment` is the mark as it is written."""

    page: str
    mark: Mark
    comment: str
    text: str


def digest(text: str) -> str:
    """Twelve digits of the SHA-256 of a text, in which any white space counts as one space."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def mark_for(name: str, english: str, chinese: str, reason: str = "") -> Mark:
    """The mark of a Chinese text that was written for this English one."""
    return Mark(name, digest(english), digest(chinese), _pair(digest(english), digest(chinese)), reason)


def translated(page: str, text: str) -> Iterator[Translated]:
    """The sections of a Chinese page that have a mark. ValueError: a mark that cannot be read."""
    for section in sections(text).values():
        for comment in _COMMENT.finditer(section):
            found = _MARK.fullmatch(comment[1])
            if not found:
                raise ValueError(f"{page}: this mark cannot be read: {comment[0].strip()}")
            mark = Mark(**{field: value or "" for field, value in found.groupdict().items()})
            yield Translated(page, mark, comment[0], _COMMENT.sub("", section))


def english_sections(root: Path) -> dict[str, str]:
    """{page#anchor: text} of the English pages of which something is promised."""
    pages = sorted({page for promised in PROMISED.values() for page in promised})
    return {
        f"{page}#{name}": text
        for page in pages
        for name, text in sections((root / page).read_text(encoding="utf-8")).items()
    }


def faults(section: Translated, english: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a translated section, each as a sentence that says what to do."""
    mark, at = section.mark, f"{section.page}: {section.mark.name}"
    now = english.get(mark.name)
    if now is None:
        yield f"{at}: there is no such English section. Name the one that the Chinese text translates, or delete it."
        return
    renew = f"python tests/chinese_pages.py renew {mark.name}"
    if not mark.english:
        yield f"{at} has no digests yet. Run: {renew}"
    elif mark.english != digest(now):
        yield (
            f"{at}: the English section has changed (noted {mark.english}, now {digest(now)}). "
            f"Bring the Chinese text up to date, then run: {renew}"
        )
    elif mark.chinese != digest(section.text):
        yield f"{at}: the Chinese text has changed (noted {mark.chinese}). Run: {renew}"
    elif mark.pair != _pair(mark.english, mark.chinese) and len(mark.reason) < REASON_LENGTH_MIN:
        yield (
            f"{at}: the English digest is new, and the Chinese text is the old one. "
            f'Change the text, or say why it stays: {renew} --reason "..."'
        )
    if code_blocks(section.text) != code_blocks(now):
        yield f"{at}: the blocks of code are not those of the English section"
    for what, ours, theirs in (
        ("names in backquotes", code_spans(section.text), code_spans(now)),
        ("figures", set(_FIGURE.findall(section.text)), set(_FIGURE.findall(now))),
    ):
        if ours != theirs:
            yield f"{at}: {what}: only in Chinese {sorted(ours - theirs)}, only in English {sorted(theirs - ours)}"


def missing(there: Sequence[str], promised: Mapping[str, Sequence[str]], english: Mapping[str, str]) -> Iterator[str]:
    """The promised sections that a Chinese page does not have, and those that it has twice or unasked."""
    wanted = [
        name
        for page, names in promised.items()
        for name in ([one for one in english if one.startswith(f"{page}#")] if names == WHOLE else
                     [f"{page}#{anchor}" for anchor in names])
    ]  # fmt: skip
    yield from (f"{name} is promised, and not there" for name in wanted if name not in there)
    yield from (f"{name} is there, and not promised" for name in dict.fromkeys(there) if name not in wanted)
    yield from (f"{name} is there twice" for name in dict.fromkeys(there) if there.count(name) > 1)


def all_faults(root: Path) -> Iterator[str]:
    """Of all Chinese pages."""
    english = english_sections(root)
    for page, promised in PROMISED.items():
        here = list(translated(page, (root / page).read_text(encoding="utf-8")))
        names = [section.mark.name for section in here]
        yield from (f"{page}: {fault}" for fault in missing(names, promised, english))
        for section in here:
            yield from faults(section, english)


def renewed(section: Translated, english: str, reason: str = "") -> Mark:
    """The mark for the English text as it is now. Refused without a reason if the Chinese text is the noted one."""
    mark, new = section.mark, mark_for(section.mark.name, english, section.text)
    if mark.chinese != new.chinese:
        if reason:
            raise Refused(f"{mark.name}: the Chinese text has changed; a reason is for a text that stays")
        return new
    if mark.pair == new.pair and not reason:
        return new
    if mark.pair == new.pair:
        raise Refused(f"{mark.name}: this Chinese text was written for this English one; no reason is needed")
    if mark.english == new.english and len(mark.reason) >= REASON_LENGTH_MIN and not reason:
        return mark
    if len(reason) < REASON_LENGTH_MIN or "--" in reason or len(reason.splitlines()) > 1:
        raise Refused(
            f"{mark.name}: the Chinese text has not changed. Change it, or give --reason: one line of at least "
            f"{REASON_LENGTH_MIN} characters, without `--`, that says why the text stays"
        )
    return Mark(mark.name, new.english, mark.chinese, mark.pair, reason)


def renew(root: Path, names: Sequence[str], reason: str) -> None:
    """Write new digests of the named English sections into the Chinese pages."""
    english = english_sections(root)
    left = set(names)
    for page in PROMISED:
        path = root / page
        text = path.read_text(encoding="utf-8")
        for section in translated(page, text):
            name = section.mark.name
            if name in left and name in english:
                text = text.replace(section.comment, str(renewed(section, english[name], reason)))
                left.remove(name)
        path.write_text(text, encoding="utf-8")
    if left:
        raise Refused(f"no English section with a mark in docs/zh: {', '.join(sorted(left))}")


def _pair(english: str, chinese: str) -> str:
    return digest(f"{english} {chinese}")


def main(arguments: Sequence[str]) -> str | None:
    """What sys.exit takes: nothing, or the text of what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(dest="command").add_parser("renew", help="write new digests")
    command.add_argument("names", nargs="+", metavar="PAGE#SECTION")
    command.add_argument("--reason", default="", help="why a Chinese text stays though the English one has changed")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "renew":
            renew(ROOT, asked.names, asked.reason)
            return None
        return "\n".join(all_faults(ROOT)) or None
    except (Refused, ValueError) as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
