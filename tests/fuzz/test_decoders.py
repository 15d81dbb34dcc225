"""Every decoder for some seconds, with everything that ever broke one; and that the parts would notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash.conftest import fast_directory, run_part  # noqa: F401 - fixtures
from crash.part import Counters, Part
from fuzz.decoders import PARTS, complaint
from fuzz.targets import CORPUS, TARGETS, Target

pytestmark = pytest.mark.harness

Run = Callable[..., Counters]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_only_errors_of_ours_come_out_of_a_decoder(run_part: Run, part: Part) -> None:  # noqa: F811
    counters = run_part(part)
    assert counters.violations == 0, counters.first
    assert counters.cycles == part.harness
    (refused,) = counters.seen.values()
    # These four answer "none" for what is none of theirs.
    names = ("properties", "unit", "progress", "sent_requests")
    assert refused > 0 or part.name in [f"decoders {name}" for name in names]


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part in PARTS for name in part.protections], ids=lambda value: str(value)[:40]
)
@pytest.mark.teeth
def test_a_decoder_without_its_check_is_noticed(run_part: Run, part: Part, name: str) -> None:  # noqa: F811
    assert run_part(part, without_protection=name).violations > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_once_broke_a_decoder_does_not_any_more(target: Target) -> None:
    for data in target.corpus():
        assert complaint(target, data)[0] == "", data[:200].hex()


def test_the_corpus_belongs_to_targets_and_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= {target.name for target in TARGETS}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 100_000
