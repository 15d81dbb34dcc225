"""The Makefile runs some kinds of tests from their directories alone. One that lies elsewhere would never run there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from helpers import kafka_fixtures
from rmq_store.cli import commands

TESTS = Path(__file__).resolve().parent
MAKEFILE = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
TAKES_KAFKA = re.compile(r"\bkafka: (kafka_server\.)?KafkaServer\b")
"""In modules with a test that the fixture `kafka` of helpers.kafka_fixtures gives a released Kafka."""
# What such modules are for has targets of its own (`make kafka`), or is Spark, which has a client of its own.
NOT_WITH_EACH_KAFKA = re.compile(r"\bpytestmark = pytest\.mark\.harness\b|\bmark\.spark\b")
FEATURES_OF_KAFKA = {
    "topics and their ids": "test_a_topic_that_is_made_again_has_another_id_and_is_refused",
    "batches, as our own code reads and makes them": "test_rows_of_all_compressions_come_back",
    "transactions": "test_a_second_writer_fences_the_first_and_is_not_fenced_back",
    "a mirror from a store": "test_messages_arrive_in_their_partitions_and_in_order",
    "a mirror from a broker": "test_the_command_takes_a_cluster",
    "a mirror into a store": "test_records_are_copied_with_their_keys_and_headers",
    "mirrors both ways at once": "test_both_ways_at_once_settle",
    "records as they were, there and back": "test_odd_records_go_through_kafka_and_stores_and_are_what_they_were",
    "dead letters of a mirror": "test_a_record_that_is_too_large_is_a_letter",
    "groups to and fro": "test_a_group_that_goes_to_and_fro_on_a_topic_of_both_sides_misses_nothing",
    "groups of all protocols": "test_groups_of_all_protocols_of_this_kafka_go_over_and_a_share_group_is_named",
    "dead letters of Kafka, and their redrive": "test_dead_letters_of_kafka_are_shown_and_go_back_once",
    "retries": "test_failed_records_return_after_their_delay_and_are_dead_in_the_end",
    "a broker that is killed": "test_in_rounds_it_bears_that_kafka_is_away_for_a_while",
}


def directories(name: str) -> list[Path]:
    (words,) = re.findall(rf"^{name} := (.+)$", MAKEFILE, re.MULTILINE)
    return [TESTS.parent / word for word in words.split()]


@pytest.mark.parametrize(
    ("marker", "name"),
    [
        ("harness", "HARNESS"), ("teeth", "HARNESS"), ("compat", "COMPAT"), ("cluster", "CLUSTER"),
        ("interop", "INTEROP"),
    ],
)
def test_all_tests_of_a_marker_are_in_the_directories_that_the_makefile_names(marker: str, name: str) -> None:
    places = directories(name)
    assert all(place.is_dir() for place in places)
    used = [path for path in TESTS.rglob("*.py") if re.search(rf"\bmark\.{marker}\b", path.read_text(encoding="utf-8"))]
    assert used
    assert [path for path in used if not any(path.is_relative_to(place) for place in places)] == []


def test_each_directory_of_the_makefile_is_used_by_its_target() -> None:
    for name, targets in (("HARNESS", 2), ("COMPAT", 2), ("CLUSTER", 3), ("INTEROP", 2)):
        assert MAKEFILE.count(f"$({name})") == targets


def test_no_test_of_the_default_run_is_in_a_directory_that_it_ignores() -> None:
    """To import those takes each of its processes seconds."""
    assert MAKEFILE.count("$(ELSEWHERE)") == 2
    (marks,) = re.findall(r"^IN_ANY_CLONE := (.+)$", MAKEFILE, re.MULTILINE)
    for place in (place for name in ("COMPAT", "CLUSTER", "INTEROP") for place in directories(name)):
        for_all = re.findall(r"item\.add_marker\(pytest\.mark\.(\w+)\)", (place / "conftest.py").read_text("utf-8"))
        assert for_all and all(f"not {name}" in marks for name in for_all)


def of_a_released_kafka() -> dict[Path, str]:
    """Modules of tests with their text: those that `make kafka-versions` runs, or parts of them."""
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    return {
        path: text
        for path, text in texts.items()
        if TAKES_KAFKA.search(text) and not NOT_WITH_EACH_KAFKA.search(text)
        if not any(path.is_relative_to(place) for place in directories("CLUSTER"))
    }


def test_tests_of_a_released_kafka_are_where_make_kafka_versions_looks() -> None:
    places = directories("KAFKA_TESTS")
    assert all(place.exists() for place in places) and MAKEFILE.count("$(KAFKA_TESTS)") == 1
    assert [path for path in of_a_released_kafka() if not any(path.is_relative_to(place) for place in places)] == []


@pytest.mark.parametrize("test", FEATURES_OF_KAFKA.values(), ids=FEATURES_OF_KAFKA.keys())
def test_each_feature_is_tried_with_each_version_of_kafka(test: str) -> None:
    definition = re.compile(rf"^def {test}\([^)]*\b(kafka: Kafka\w+|scene: Scene)\b", re.MULTILINE)
    assert [path.name for path, text in of_a_released_kafka().items() if definition.search(text)]


@pytest.mark.parametrize("command", sorted(cast(click.Group, commands.get_command(None, "mirror")).commands))
def test_each_command_of_mirrors_is_tried_with_each_version_of_kafka(command: str) -> None:
    assert [path.name for path, text in of_a_released_kafka().items() if f'"{command}"' in text]


def test_only_tests_with_a_released_kafka_run_with_each_version() -> None:
    """Not those that have a `kafka` of their own, in memory."""
    marked: dict[str, list[str]] = {}

    def item(*names: str) -> Any:
        return SimpleNamespace(
            fixturenames=names, add_marker=lambda mark: marked.setdefault(mark.name, []).append("+".join(names))
        )

    kafka_fixtures.pytest_collection_modifyitems([item("kafka", "released_kafka"), item("kafka"), item()])
    assert marked == {"kafka_versions": ["kafka+released_kafka"]}
