"""The commands of docs/deploy.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def command(name: str, **instead: str) -> str:
    """The block behind `<!-- run: NAME -->`; `instead` has words of the page by their parameter names below."""
    (found,) = re.findall(rf"<!-- run: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    text: str = found
    for parameter, value in instead.items():
        word = WORDS[parameter]
        assert word in text, f"the recipe {name} of docs/deploy.md does not name {word}"
        text = text.replace(word, value)
    return text


# What a test must replace: places that only a reader has.
WORDS = {
    "master": "spark://spark1:7077",
    "name_server": "ns1:9876",
    "checkpoint": "/shared/checkpoint",
    "unpacked": "/opt/environment",
}


def messages() -> list[str]:
    """The first column of the table of messages: each text between backticks."""
    table = PAGE.split("| you see | it means | do |")[1].split("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
