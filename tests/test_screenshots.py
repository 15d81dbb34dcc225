"""The pictures in docs/images show what the commands print now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import pyspark_rmq
import screenshots
from rmq_store import Message, Store, client, reliable
from rmq_store.cli import commands

README = (screenshots.ROOT / "README.md").read_text(encoding="utf-8")


def test_each_picture_has_a_command_that_makes_it_and_the_readme_shows_it() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(docs/images/([^)]+)\)", README)
    made = {f"{name}.svg" for name in screenshots.PICTURES}
    assert {path.name for path in screenshots.IMAGES.iterdir()} - {"architecture.svg"} == made
    assert sorted(shown) == sorted({*made, "architecture.svg"})


@pytest.mark.parametrize("name", screenshots.PICTURES)
def test_a_picture_shows_what_its_command_prints(name: str) -> None:
    picture = (screenshots.IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert screenshots.drawn_lines(picture) == screenshots.plain_lines(screenshots.printed(name)), (
        "python tests/screenshots.py"
    )
    assert screenshots.PICTURES[name][0] in picture.replace("&#160;", " ")


@pytest.mark.parametrize("path", sorted(screenshots.IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_small_and_asks_no_server(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 20_000
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}


def test_the_figure_of_the_architecture_names_what_is_there(tmp_path: Path) -> None:
    figure = ElementTree.parse(screenshots.IMAGES / "architecture.svg")
    texts = [text.text or "" for text in figure.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "c"]
    words = [word for text in texts for word in re.sub(r"^\((.*)\)$", r"\1", text).split(", ")]
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"two teas", keys="ORD-1"))
    public = {*dir(pyspark_rmq), *client.__all__, *reliable.__all__, 'format("rmq")', "..."}
    for word in words:
        if word.endswith("/"):
            assert (tmp_path / "store" / word).is_dir(), word
        elif word.startswith("rmq "):
            assert word.removeprefix("rmq ") in commands.commands
        elif word.startswith("rmq_store."):
            assert importlib.util.find_spec(word) is not None
        else:
            assert word in public, word
    assert len([word for word in words if word.endswith("/")]) == 5
