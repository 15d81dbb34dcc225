"""Each row of docs/limits.md is held to the code: by a test that shows the limit, by a symbol with its value, or by a
module that must not exist. A row that loses its proof, and a limit that is gone, fail here.

    tests/...::test_name        this test exists
    setting NAME=VALUE          the default of a setting of a store;  fixed NAMES  settings that cannot be changed
    module:NAME                 this symbol exists;  module:NAME=value  with this value
    says FILE TEXT              a refusal with these words
    absent module               there is no such module: with it, the limit would be gone
    outside REASON              a limit of others (Spark, drives, kernels), which no test of ours can show
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from rmq_store import StoreConfig
from rmq_store.broker.metadata.store_config import CHANGEABLE

# ruff: noqa: E501
ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
_OUTSIDE_MAX = 6

_C, _S = "tests/connector", "tests/storage"
# How a row begins -> its proof.
PROOFS = {
    # -- machines and versions
    "One host for a store": "absent rmq_store.replication",
    "A served store (`rmq broker run --listen`) has its writers on one host": f"{_S}/server/test_access_options.py::test_loopback_needs_neither",
    "Commands that read or repair files": f"{_S}/cli/test_cluster_target.py::test_a_refused_command_ends_with_the_sentence_of_its_row",
    "`rmq follow` copies brokers with DefaultHA only": "says storage/rmq_store/replica/master.py only a master with DefaultHA is followed",
    "A replica of a broker is only read": f"{_S}/cli/test_replica_commands.py::test_a_command_that_writes_is_refused_and_changes_nothing",
    "A slave takes over when somebody promotes it": "absent rmq_store.replica.controller",
    "A slave has no gRPC port and no POP": f"{_S}/server/slave/test_slave_server.py::test_what_only_a_master_does_is_refused",
    "No replication of a store that is not served": "absent rmq_store.replication",
    "Slaves copy over DefaultHA only": f"{_S}/server/ha/test_sync_master.py::test_the_rules_of_5_count_replicas",
    "The HA port has neither authentication": f"{_S}/server/ha/test_ha_server.py::test_an_address_that_others_reach_needs_names_of_slaves",
    "Linux on x86-64 only": "says storage/rmq_store/files/locks/lock.py 64-bit Linux only",
    "No network file systems": f"{_S}/cli/test_doctor.py::test_file_systems",
    "Python 3.11 or newer": "tests/packaging/test_check_host.py::test_make_stops_at_that_line",
    "Compared with RocketMQ 5.5.0": f"{_S}/kinds/test_detection.py::test_a_dledger_log_is_neither_read_nor_written_nor_taken_for_nothing",
    "A drive that reports fsync done": "outside a program sees no such drive",
    # -- beside a broker
    "A Java broker and our writers cannot": f"{_S}/test_store.py::test_a_broker_on_the_store_keeps_writers_out_and_lets_readers_in",
    "The lock stops a Java broker": f"{_S}/test_store.py::test_writers_keep_a_broker_out",
    "A Java broker deletes messages older": "setting file_reserved_time=72",
    "A Java broker truncates the log": "outside what Java's recovery does",
    "A Java broker ignores `pyrmq/`": "rmq_store.format.text.names:PYRMQ_TIMER_TOPIC=rmq_sys_pyrmq_timer",
    "A broker's timers (`rmq_sys_wheel_timer`)": f"{_C}/read/test_reports.py::test_what_only_a_broker_delivers_is_read_as_rows",
    "Nobody asks for half messages": f"{_S}/cli/test_transactions_command.py::test_what_was_given_up_or_left_by_a_broker_is_resumed_once",
    "Opening a broker's store for writing": f"{_S}/log/recovery/test_opening.py::test_abort_exists_before_anything_is_changed",
    "A broker that starts right after": f"{_S}/broker/delay/test_scheduler.py::test_progress_is_told_to_a_broker_every_10_s",
    "Queues kept in RocksDB": f"{_S}/kinds/test_detection.py::test_a_store_with_queues_in_rocksdb_alone_is_not_taken_for_an_empty_one",
    "Batch queues and compaction topics": "rmq_store.kinds:refuse_to_read_topic",
    "A DLedger log": f"{_S}/kinds/test_detection.py::test_a_dledger_log_is_neither_read_nor_written_nor_taken_for_nothing",
    # -- data on disk
    "Messages are deleted only by": "setting disk_space_warning_level_ratio=90",
    "A plain `cp -r` or `rsync`": f"{_S}/broker/backup/test_backup.py::test_a_plain_copy_of_the_same_store_is_torn",
    "A compressed body is inflated to 16 MiB": "rmq_store.format.frames.compression:PLAIN_BYTES_MAX=16777216",
    "Reads do not verify checksums": f"{_S}/log/integrity/test_accepted_damage.py::test_a_flipped_bit_costs_one_message_named_by_bytes_and_queue_offsets",
    "Under `ASYNC_FLUSH`": "tests/crash/test_loss_bound.py::test_a_power_cut_takes_what_the_flusher_was_not_due_to_write_and_no_more",
    "`flushDiskType`, `messageIndexEnable`": "fixed flush_disk_type message_index_enable enabled_append_prop_crc",
    "A table in `config/`": "rmq_store.format.tables.config_json:SIZE_MAX=67108864",
    "A store with `messageIndexEnable=false`": f"{_C}/read/test_index_read.py::test_a_store_that_keeps_no_index_is_read_and_says_so",
    "Somebody who can write to the directory": f"{_S}/cli/test_doctor.py::test_root_on_the_store_of_somebody_else",
    "The kernel kills a process (SIGBUS)": "outside what a kernel does",
    # -- streams and batches
    "One query per group": f"{_C}/read/test_stream_planning.py::test_a_second_query_of_the_group_is_refused_by_name_before_it_reads",
    "A query and the consumers of its group": f"{_S}/broker/metadata/test_leases.py::test_a_holder_without_a_heartbeat_is_called_stuck_but_keeps_the_lease",
    "A query that gives other rows": f"{_C}/write/test_sink_tasks.py::test_a_repeated_batch_with_other_rows_is_an_error_unless_the_query_says_so",
    "Repeated rows are compared": f"{_S}/test_store_units.py::test_the_same_value_with_other_rows_is_refused_unless_the_caller_says_so",
    "While no name server of a cluster answers": f"{_C}/write/test_handed_routes.py::test_a_new_worker_cannot_find_a_topic_that_only_a_column_names",
    "Columns and filters are not pushed": f"{_C}/read/test_pushdown.py::test_places_narrow_the_plan",
    "Output mode `update`": f"{_C}/write/test_sink_spark.py::test_overwrite_and_complete_are_refused_with_a_reason",
    "Real-time mode": "outside what Spark offers to Python",
    "A batch write that runs again": f"{_C}/write/test_sink_spark.py::test_a_transaction_id_makes_a_batch_write_idempotent",
    "A table of Spark's catalog": f"{_C}/options/test_options.py::test_a_table_of_the_catalog_is_refused_with_what_works",
    "With Spark Connect": f"{_C}/retry/test_consume_once_spark.py::test_it_works_on_spark_connect",
    "A Python data source cannot put metrics": f"{_C}/lag/test_lag_listener.py::test_a_progress_is_one_line_of_json_for_each_source",
    "A sink marker is kept for 30 days": "setting unit_marker_reserved_time=720",
    "Spark 4.3.0: of two queries": "outside a defect of Spark",
    "Spark 4.3.0: a driver that dies": "outside a defect of Spark",
    "`rmq checkpoint` reads local checkpoints": "pyspark_rmq.checkpoint.reading:open_checkpoint",
    # -- retries
    "Handlers of `consume` run at least once": f"{_C}/retry/test_consume_once.py::test_an_exception_fails_the_guilty_rows_only_and_each_half_commits_for_itself",
    "A handler that never returns": "absent pyspark_rmq.retry.handler_timeout",
    "Delayed messages are delivered by": f"{_C}/read/test_retry_source.py::test_a_stream_that_does_not_commit_delivers_nothing",
    "A group with `retryQueueNums` 0": f"{_S}/broker/retry/test_retry.py::test_step_3_a_group_without_retry_queues_drops_failed_messages",
    "A property string has at most 32,767": f"{_C}/write/test_retry_sink.py::test_a_reason_too_long_for_the_properties_is_cut",
    "The flood breaker keeps its minute": f"{_C}/retry/test_consume_spark.py::test_the_flood_breaker_stops_the_query_before_anything_is_sent_back",
    # -- clients
    "A producer that retries may store": f"{_S}/reliable/sending/test_relay.py::test_a_lost_answer_costs_a_duplicate_with_the_same_id",
    "A push consumer stores its progress": "rmq_store.client.consumer.push_consumer:PERSIST_MS=5000",
    "A consumer process that is stopped": "rmq_store.broker.metadata.leases:STUCK_AFTER_MS=120000",
    "A simple consumer gives no order": "rmq_store.client.consumer.simple_consumer:SimpleConsumer",
    "Python listeners that are called": "rmq_store.client:MessageListenerArrow",
    # -- outbox and inbox
    "An effect outside the database": f"{_S}/reliable/test_reliable_examples.py::test_an_effect_elsewhere_is_not_repeated_while_the_inbox_knows_it",
    "MongoDB is not supported": "absent rmq_store.reliable.mongodb",
    "Broadcasting consumers are refused": f"{_S}/reliable/test_listeners.py::test_a_broadcasting_consumer_refuses_the_listeners_of_a_group",
    "`Idempotency.purge()` deletes": f"{_S}/reliable/test_once.py::test_purge_forgets_what_is_older_than_any_duplicate_may_be",
    "MariaDB and MySQL need InnoDB": "rmq_store.reliable:create_tables",
    "A message with a sharding key": f"{_S}/reliable/sending/test_outbox.py::test_a_message_on_the_manual_list_holds_up_its_key",
    # -- Kafka
    "A mirror out of Kafka writes": f"{_S}/cli/test_cluster_target.py::test_a_refused_command_ends_with_the_sentence_of_its_row",
    "While a mirror writes into a store": f"{_S}/test_store.py::test_writers_keep_a_broker_out",
    "A mirror has one thread": f"{_S}/cli/test_mirror_to_store.py::test_a_mirror_runs_until_sigterm_and_ends_well",
    "Two mirrors of one direction": f"{_S}/bridge/mirror/test_into_store_rules.py::test_of_two_mirrors_of_one_name_only_one_goes_on",
    "Producers of a mirrored topic": "rmq_store.bridge.records.origin:",
    "Redrive and retry give records": "rmq_store.bridge.dead_letters.retry_rows:",
    "Values with a schema id": "absent rmq_store.bridge.schema_registry",
    "A compacted Kafka topic": f"{_S}/bridge/records/test_to_kafka.py::test_a_compacted_topic_takes_no_record_without_a_key",
}  # fmt: skip


def limits(page: str) -> list[str]:
    """The first cells of the rows of all tables."""
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    return [row for row in rows if row != "limit"]


LIMITS = limits(PAGE)


def fault(proof: str) -> str:
    """Why a proof does not hold; "" if it does."""
    if proof.startswith("outside "):
        return ""
    if proof.startswith("says "):
        _, name, text = proof.split(" ", 2)
        return "" if text in (ROOT / name).read_text(encoding="utf-8") else f"{name} does not say {text!r}"
    if proof.startswith("absent "):
        return f"{proof} is there" if _is_there(proof.split()[1]) else ""
    if proof.startswith("fixed "):
        return " ".join(set(proof.split()[1:]) & set(CHANGEABLE))
    if proof.startswith("setting "):
        name, _, value = proof.removeprefix("setting ").partition("=")
        return "" if str(getattr(StoreConfig(), name)) == value else f"{name} is {getattr(StoreConfig(), name)}"
    if "::" in proof:
        name, _, test = proof.partition("::")
        path = ROOT / name
        found = path.is_file() and re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        return "" if found else f"there is no {proof}"
    place, _, value = proof.partition("=")
    module, _, name = place.partition(":")
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, name) if name else imported
    except (ImportError, AttributeError) as error:
        return str(error)
    return "" if not value or str(found) == value else f"{place} is {found}"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_each_row_has_one_proof_and_each_proof_a_row() -> None:
    for limit in LIMITS:
        assert [start for start in PROOFS if limit.startswith(start)] != [], f"no proof: {limit}"
        assert len([start for start in PROOFS if limit.startswith(start)]) == 1, limit
    assert [start for start in PROOFS if not any(limit.startswith(start) for limit in LIMITS)] == []
    assert sum(proof.startswith("outside ") for proof in PROOFS.values()) <= _OUTSIDE_MAX


@pytest.mark.parametrize("start", PROOFS)
def test_a_limit_is_still_one(start: str) -> None:
    assert fault(PROOFS[start]) == ""


@pytest.mark.parametrize(
    "proof",
    [
        "tests/test_limits.py::test_that_is_not_there",
        "rmq_store.errors:NoSuchError",
        "rmq_store.nothing:",
        "rmq_store.format.tables.config_json:SIZE_MAX=1",
        "absent rmq_store.server",
        "fixed file_reserved_time",
    ],
)
def test_a_proof_that_does_not_hold_is_noticed(proof: str) -> None:
    assert fault(proof) != ""
