"""The pages in docs/zh follow the English ones: no section is stale, missing, or different in its code and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import chinese_pages
from chinese_pages import (
    PROMISED,
    ROOT,
    WHOLE,
    Mark,
    Refused,
    all_faults,
    digest,
    faults,
    mark_for,
    missing,
    renewed,
    translated,
)  # fmt: skip
from page_sections import IMAGE, LINK, anchor, code_blocks, code_spans, sections

NAME = "docs/a.md#threads"
ENGLISH = "## Threads\n\nCall `register` in 2.5 s.\n\n    rmq topics\n\nDone.\n"
CHINESE = "## 线程\n\n在 2.5 秒内调用 `register`。\n\n    rmq topics\n\n完成。\n"
REASON = "only the English wording changed"


def page(mark: Mark | str, text: str = CHINESE) -> str:
    heading, _, rest = text.partition("\n")
    return f"{heading}\n{mark if isinstance(mark, str) else str(mark)}{rest}"


def said(mark: Mark | str, text: str = CHINESE, english: str = ENGLISH, name: str = NAME) -> list[str]:
    (section,) = translated("docs/zh/a.md", page(mark, text))
    return list(faults(section, {name: english}))


def renew(mark: Mark | str, text: str = CHINESE, english: str = ENGLISH, reason: str = "") -> Mark:
    (section,) = translated("docs/zh/a.md", page(mark, text))
    return renewed(section, english, reason)


def test_the_chinese_pages_are_up_to_date() -> None:
    assert list(all_faults(ROOT)) == []


def test_every_chinese_page_is_checked_and_in_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}
    assert {f"docs/zh/{name}" for name in pages} == PROMISED.keys()
    assert pages - {"README.md"} <= set(LINK.findall((ROOT / "docs" / "zh" / "README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PROMISED)
def test_a_chinese_page_is_chinese_and_has_the_images_of_the_english_sections(name: str) -> None:
    english = chinese_pages.english_sections(ROOT)
    for section in translated(name, (ROOT / name).read_text(encoding="utf-8")):
        prose = re.sub(r"^```.*?^```$", "", section.text, flags=re.MULTILINE | re.DOTALL)
        assert re.search(r"[\u4e00-\u9fff]{2}", prose), section.mark.name
        here = [(ROOT / name).parent / target for target in IMAGE.findall(section.text)]
        page_there = ROOT / section.mark.name.partition("#")[0]
        there = [page_there.parent / target for target in IMAGE.findall(english[section.mark.name])]
        assert [image.resolve() for image in here] == [image.resolve() for image in there], section.mark.name


def test_a_chinese_paragraph_is_one_line() -> None:
    """Viewers show a line break between two Chinese characters as a space."""
    for name in PROMISED:
        text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"[\u3000-\u9fff\uff00-\uffef]\n *[\u3000-\u9fff\uff00-\uffef].*", text) == [], name


# The checker itself, on a section of a page that does not exist.


def test_a_section_that_is_up_to_date_has_no_fault() -> None:
    assert said(mark_for(NAME, ENGLISH, CHINESE)) == []


def test_white_space_of_the_english_section_does_not_count() -> None:
    wrapped = ENGLISH.replace("Call `register` in", "Call\n`register`  in")
    assert said(mark_for(NAME, ENGLISH, CHINESE), english=wrapped) == []


def test_an_english_section_that_changes_makes_the_chinese_one_stale() -> None:
    (fault,) = said(mark_for(NAME, ENGLISH, CHINESE), english=ENGLISH.replace("Done", "Finished"))
    assert fault.startswith("docs/zh/a.md: docs/a.md#threads: the English section has changed")
    assert fault.endswith("then run: python tests/chinese_pages.py renew docs/a.md#threads")


def test_a_heading_counts_as_text() -> None:
    (fault,) = said(mark_for(NAME, ENGLISH, CHINESE), english=ENGLISH.replace("## Threads", "### Threads"))
    assert "the English section has changed" in fault


@pytest.mark.parametrize("reason", ["", "ok"])
def test_a_digest_replaced_by_hand_needs_a_reason(reason: str) -> None:
    newer = ENGLISH.replace("Done", "Finished")
    old = mark_for(NAME, ENGLISH, CHINESE)
    by_hand = Mark(NAME, digest(newer), old.chinese, old.pair, reason)
    (fault,) = said(by_hand, english=newer)
    assert "the English digest is new, and the Chinese text is the old one" in fault
    with pytest.raises(Refused, match="has not changed\\. Change it, or give --reason"):
        renew(by_hand, english=newer)


def test_a_renewed_digest_needs_a_changed_text_or_a_reason() -> None:
    newer = ENGLISH.replace("Done", "Finished")
    old = mark_for(NAME, ENGLISH, CHINESE)
    with pytest.raises(Refused, match="has not changed\\. Change it, or give --reason"):
        renew(old, english=newer)
    with pytest.raises(Refused, match="at least 10 characters"):
        renew(old, english=newer, reason="ok")
    with pytest.raises(Refused, match="without `--`"):
        renew(old, english=newer, reason="this ends --> the comment")
    stays = renew(old, english=newer, reason=REASON)
    assert (stays.english, stays.chinese, stays.pair, stays.reason) == (digest(newer), old.chinese, old.pair, REASON)
    assert said(stays, english=newer) == []
    changed = CHINESE.replace("完成", "结束")
    assert said(renew(old, changed, newer), changed, newer) == []


def test_a_reason_holds_for_one_change_only() -> None:
    newer, newest = ENGLISH.replace("Done", "Finished"), ENGLISH.replace("Done", "Ready")
    stays = renew(mark_for(NAME, ENGLISH, CHINESE), english=newer, reason=REASON)
    with pytest.raises(Refused, match="has not changed"):
        renew(stays, english=newest)
    assert renew(stays, english=newest, reason="another wording again").reason == "another wording again"


def test_a_reason_goes_when_the_chinese_text_changes() -> None:
    newer = ENGLISH.replace("Done", "Finished")
    stays = renew(mark_for(NAME, ENGLISH, CHINESE), english=newer, reason=REASON)
    changed = CHINESE.replace("完成", "结束")
    (fault,) = said(stays, changed, newer)
    assert "the Chinese text has changed" in fault
    assert renew(stays, changed, newer) == mark_for(NAME, newer, changed)
    with pytest.raises(Refused, match="a reason is for a text that stays"):
        renew(stays, changed, newer, reason=REASON)


def test_a_change_that_is_taken_back_needs_no_reason() -> None:
    newer = ENGLISH.replace("Done", "Finished")
    old = mark_for(NAME, ENGLISH, CHINESE)
    assert renew(renew(old, english=newer, reason=REASON)) == old
    with pytest.raises(Refused, match="no reason is needed"):
        renew(old, reason=REASON)


def test_a_new_section_gets_its_digests_from_the_command() -> None:
    (fault,) = said(f"<!-- en: {NAME} -->\n")
    assert fault.endswith("has no digests yet. Run: python tests/chinese_pages.py renew docs/a.md#threads")
    assert renew(f"<!-- en: {NAME} -->\n") == mark_for(NAME, ENGLISH, CHINESE)


def test_an_english_section_that_is_gone_is_named() -> None:
    (fault,) = said(mark_for(NAME, ENGLISH, CHINESE), name="docs/a.md#other")
    assert "docs/a.md#threads: there is no such English section" in fault


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (CHINESE.replace("rmq topics", "rmq 主题"), "the blocks of code are not those"),
        (CHINESE.replace("    rmq topics\n\n", ""), "the blocks of code are not those"),
        (CHINESE.replace("`register`", "`注册`"), "names in backquotes: only in Chinese ['注册'], only in English"),
        (CHINESE.replace("2.5", "2.6"), "figures: only in Chinese ['2.6'], only in English ['2.5']"),
    ],
)
def test_code_names_and_figures_are_those_of_the_english_section(wrong: str, fault: str) -> None:
    (found,) = said(mark_for(NAME, ENGLISH, wrong), wrong)
    assert fault in found


@pytest.mark.parametrize("mark", ["threads", f"{NAME} sha256:0123456789ab", f"{NAME} sha256:0 zh:1 pair:2", ""])
def test_a_mark_that_cannot_be_read_is_an_error(mark: str) -> None:
    with pytest.raises(ValueError, match=r"docs/zh/a\.md: this mark cannot be read"):
        list(translated("docs/zh/a.md", page(f"<!-- en: {mark} -->\n")))


@pytest.mark.parametrize(
    ("there", "promised", "fault"),
    [
        (["a#x"], {"a": ["x", "y"]}, "a#y is promised, and not there"),
        (["a#x"], {"a": WHOLE}, "a#y is promised, and not there"),
        (["a#x", "a#y", "a#x"], {"a": WHOLE}, "a#x is there twice"),
        (["a#x", "a#y"], {"a": ["x"]}, "a#y is there, and not promised"),
    ],
)
def test_the_promised_sections_are_there_once(there: list[str], promised: Mapping[str, list[str]], fault: str) -> None:
    assert list(missing(there, promised, {"a#x": "", "a#y": "", "b#z": ""})) == [fault]


def test_the_command_writes_the_digests_and_says_what_is_left(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scratch / "docs" / "zh").mkdir(parents=True)
    english, chinese = scratch / "docs" / "a.md", scratch / "docs" / "zh" / "a.md"
    english.write_text(f"# A\n\n{ENGLISH}", encoding="utf-8")
    chinese.write_text(f"# 甲\n\n{page(f'<!-- en: {NAME} -->' + chr(10))}", encoding="utf-8")
    monkeypatch.setattr(chinese_pages, "ROOT", scratch)
    monkeypatch.setattr(chinese_pages, "PROMISED", {"docs/zh/a.md": {"docs/a.md": ["threads"]}})
    assert "has no digests yet" in str(chinese_pages.main([]))
    assert chinese_pages.main(["renew", NAME]) is None
    assert chinese_pages.main([]) is None
    english.write_text(f"# A\n\n{ENGLISH.replace('Done', 'Finished')}", encoding="utf-8")
    assert "the English section has changed" in str(chinese_pages.main([]))
    before = chinese.read_text(encoding="utf-8")
    assert "give --reason" in str(chinese_pages.main(["renew", NAME]))
    assert chinese.read_text(encoding="utf-8") == before
    assert chinese_pages.main(["renew", NAME, "--reason", REASON]) is None
    assert chinese_pages.main([]) is None
    assert f" reason: {REASON} -->" in chinese.read_text(encoding="utf-8")
    assert "no English section with a mark in docs/zh: docs/a.md#b" in str(chinese_pages.main(["renew", "docs/a.md#b"]))


# How a page is taken apart.


def test_sections_end_at_the_next_heading_and_code_has_none() -> None:
    text = "# A `b`: c\n\nx\n\n```python\n# no heading\n```\n\n    # none\n\n## D\n### D\ny\n"
    assert list(sections(text)) == ["a-b-c", "d", "d-1"]
    assert "no heading" in sections(text)["a-b-c"]
    assert sections(text)["d-1"] == "### D\ny\n"
    assert anchor("2. 保证:刷盘") == "2-保证刷盘"


def test_blocks_are_those_of_fences_and_of_indented_lines() -> None:
    text = (
        "## A\n\n    one\n\n    two\n\n* item\n    no code\n\n```text\n    three\n```\n\n    four `x`\n\n`y\nz` end\n"
    )
    assert code_blocks(text) == ["    one\n\n    two", "```text\n    three\n```", "    four `x`"]
    assert code_spans(text) == {"y z"}
