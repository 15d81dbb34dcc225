"""What holds each row of docs/guarantees.md: a fault that a named test must notice, or a protection of the crash proof.

`FAULTS`: a text of a module is replaced, and the test must fail then (`run`). `TEETH`: a part of the crash proof must notice
that the protection is missing (`tests/crash/protections.py`; `make harness`). `OUTSIDE`: rows that say what others do, or
what is not promised. A row is named by its beginning.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# ruff: noqa: E501


class Fault(NamedTuple):
    """`module` has the text `sound` exactly once; `broken` stands in its place. `test` is the id of a test."""

    row: str
    module: str
    sound: str
    broken: str
    test: str


_E, _K = "storage/rmq_store", "connector/pyspark_rmq"
_S, _C = "tests/storage", "tests/connector"

FAULTS: Final = (
    # -- death of a process, power cuts
    Fault(
        "A writer is killed after its append was complete.", f"{_E}/log/append/append.py",
        "            page.appended_end = self._end\n",
        "            pass\n",
        f"{_S}/log/append/test_append.py::test_a_writer_killed_at_its_kth_operation_is_undone_by_the_next_one",
    ),
    Fault(
        "A process is killed before it flushed", f"{_E}/log/append/flush.py",
        "        page.flushing = 1\n",
        "        page.flushing = 1\n        return\n",
        f"{_S}/log/append/test_group_commit.py::test_acknowledged_by_a_process_that_is_killed_at_once_is_on_disk",
    ),
    Fault(
        "Power cut after groups have committed offsets.", f"{_E}/broker/metadata/offsets.py",
        "                self._flush_below(moved)\n",
        "                pass\n",
        f"{_S}/broker/metadata/test_offsets.py::test_messages_are_on_disk_before_an_offset_behind_them_is",
    ),
    Fault(
        "The disk is slow, `SYNC_FLUSH`.", f"{_E}/broker/write/writer.py",
        "SendStatus.FLUSH_DISK_TIMEOUT if is_late else ",
        "SendStatus.SEND_OK if is_late else ",
        f"{_S}/log/append/test_group_commit.py::test_sync_flush_timeout_is_how_long_a_send_waits_for_the_disk",
    ),
    # -- masters and slaves
    Fault(
        "A peer without a certificate connects to an HA port", f"{_E}/server/transport/tls.py",
        "        context.verify_mode = ssl.CERT_REQUIRED\n",
        "        context.verify_mode = ssl.CERT_OPTIONAL\n",
        f"{_S}/server/ha/test_ha_tls.py::test_a_slave_without_a_certificate_of_the_authority_gets_nothing",
    ),
    Fault(
        "A peer never ends its TLS handshake", f"{_E}/server/ha/slave_connection.py",
        "        if not self._link.is_secured and now - self._began > self._settings.handshake_s:\n",
        "        if not self._link.is_secured and now < self._began:\n",
        f"{_S}/server/ha/test_ha_tls.py::test_a_handshake_that_is_never_finished_costs_the_others_nothing_and_ends_in_time",
    ),
    Fault(
        "A send to a SYNC_MASTER is answered with `SEND_OK`.", f"{_E}/log/replication.py",
        "        if not self.is_sync or page.replicated_end >= end:\n",
        "        if not self.is_sync or page.slave_count:\n",
        f"{_S}/server/ha/test_sync_master.py::test_a_slave_that_says_nothing_costs_the_time_and_no_more",
    ),
    Fault(
        "The server of a SYNC_MASTER is killed or stopped.", f"{_E}/log/replication.py",
        'return self._server.who().kind != "free"\n',
        "return True\n",
        f"{_S}/server/ha/test_sync_master.py::test_without_its_server_a_store_says_that_no_slave_has_it",
    ),
    Fault(
        "A slave reports more than it was sent, or begins beyond the log.", f"{_E}/server/ha/slave_connection.py",
        "        if offset > end:\n",
        "        if offset < 0:\n",
        f"{_S}/server/ha/test_ha_server.py::test_a_hello_one_byte_beyond_the_end_is_refused_and_names_both_ends",
    ),
    Fault(
        "A slave is slow, or takes nothing.", f"{_E}/server/ha/slave_connection.py",
        "        if self._unsent and now - self._moved > limit:\n",
        "        if self.position == now:\n",
        f"{_S}/server/ha/test_ha_server.py::test_a_slave_that_never_reads_costs_the_others_nothing_and_is_given_up",
    ),
    # -- replicas
    Fault(
        "The process that feeds a replica is killed while it writes tables.", f"{_E}/replica/metadata.py",
        "        if waiting is None or log_end < waiting.log_end:\n",
        "        if waiting is None:\n",
        f"{_S}/replica/test_metadata.py::test_offsets_wait_until_the_log_has_reached_the_end_that_the_master_had",
    ),
    Fault(
        "A group has committed offsets that a replica has not reached.", f"{_K}/read/starting_offsets.py",
        "        if not isinstance(ranges[queue], UnsureRange)\n",
        "",
        f"{_C}/read/test_replica_stream.py::test_committed_offsets_that_are_ahead_of_the_replica_are_waited_for",
    ),
    Fault(
        "A replica deletes an old segment with the newest commit", f"{_E}/broker/store/retention_plan.py",
        "    if not units:\n",
        "    if True:\n",
        f"{_S}/replica/test_replica_retention.py::test_a_segment_with_the_newest_unit_stays_until_the_master_has_written_it_again",
    ),
    Fault(
        "Somebody else opens a replica for writing.", f"{_E}/log/replica_role.py",
        "    if role is None or (feeder is not None and feeder.feeds(root)):\n",
        "    if True:\n",
        f"{_S}/log/test_replica_role.py::test_every_writer_but_its_feeder_is_refused_and_nothing_is_written",
    ),
    Fault(
        "The broker's log is shorter than the replica", f"{_E}/replica/follow.py",
        "        if ends.end < end:\n",
        "        if False:\n",
        f"{_S}/replica/test_follow.py::test_a_master_with_a_shorter_log_is_refused_with_the_ranges",
    ),
    Fault(
        "A producer of a SYNC_MASTER waits while a replica is connected.", f"{_E}/replica/follow.py",
        "            partial(self._durable_end, begin) if self._as_slave else lambda: begin, prompt=self._as_slave,\n",
        "            lambda: self.progress.end, prompt=True,\n",
        f"{_S}/replica/test_follow.py::test_a_tap_never_reports_what_a_producer_may_wait_for",
    ),
    Fault(
        "The process that feeds a replica is killed, or the power is cut.", f"{_E}/replica/feed.py",
        "                self._queues.put(piece, columns)\n",
        "                pass\n",
        f"{_S}/replica/test_feed.py::test_a_replica_has_the_log_the_queues_and_the_index_of_its_master",
    ),
    Fault(
        "The promotion of a replica is killed", f"{_E}/replica/take_over/promote.py",
        "        if not dry_run:\n",
        "        if False:\n",
        f"{_S}/replica/test_promote.py::test_the_next_run_finishes_what_a_killed_one_began",
    ),
    Fault(
        "An old master rejoins, and has messages", f"{_E}/replica/take_over/rejoin.py",
        "                export_tail(store, found.parting, found.file)\n",
        "                pass\n",
        f"{_S}/replica/test_rejoin.py::test_the_tail_is_written_down_and_cut_and_the_replica_goes_on",
    ),
    Fault(
        "The rejoining is killed, or the power is cut.", f"{_E}/log/cut_tail.py",
        "            page.declare(end, old_end, state.file, state.header)  # it counts when the visible end lies below\n",
        "",
        f"{_S}/replica/test_rejoin.py::test_a_kill_at_any_point_loses_no_message_of_the_tail",
    ),
    Fault(
        "A group commits at a slave while the master is away.", f"{_E}/replica/slave_commits.py",
        "    if commit.base <= there < commit.offset:\n",
        "    if there < commit.offset:\n",
        f"{_S}/replica/test_slave_commits.py::test_a_reset_since_then_and_progress_win",
    ),
    Fault(
        "A client sends to a slave.", f"{_E}/server/slave/refusals.py",
        "        ResponseCode.SERVICE_NOT_AVAILABLE, \"message",
        "        ResponseCode.SUCCESS, \"message",
        f"{_S}/server/slave/test_slave_server.py::test_what_only_a_master_does_is_refused",
    ),
    Fault(
        "A replica is promoted while a process feeds it.", f"{_E}/replica/take_over/promote.py",
        "    feeder.take()\n",
        "",
        f"{_S}/replica/test_promote.py::test_a_feeder_that_lives_is_named",
    ),
    # -- transactions
    Fault(
        "A transaction is ended twice", f"{_E}/broker/transactions/transactions.py",
        "expect = None if newest is None else newest.value",
        "expect = self._writer.last_unit(purposes.TRANSACTION, _KEY)",
        f"{_S}/broker/transactions/test_transactions.py::test_of_two_ends_that_meet_only_one_is_stored",
    ),
    Fault(
        "A producer dies before it has ended its transaction.", f"{_E}/broker/transactions/checks.py",
        "if half.is_due(now_ms):",
        "if half.check_times and half.is_due(now_ms):",
        f"{_S}/broker/transactions/test_checks.py::test_a_producer_is_asked_after_6_s_then_every_30_s",
    ),
    Fault(
        "No producer of the group is there.", f"{_E}/broker/transactions/checks.py",
        "return self._transactions.asked(half) is not None\n",
        "return self._transactions.asked(half) is not None\n            self._transactions.asked(half)\n",
        f"{_S}/broker/transactions/test_checks.py::test_waiting_for_a_producer_uses_up_no_question",
    ),
    Fault(
        "Fifteen questions have no outcome.", f"{_E}/broker/transactions/checks.py",
        "if half.check_times >= rules.CHECK_MAX:",
        "if half.check_times > rules.CHECK_MAX:",
        f"{_S}/broker/transactions/test_checks.py::test_after_15_questions_without_an_outcome_a_half_message_is_given_up",
    ),
    Fault(
        "A RocketMQ broker takes the store over.", f"{_E}/broker/transactions/transactions.py",
        "self._offsets.commit(rules.TRANSACTION_GROUP, progress)",
        "self._offsets.commit(rules.TRANSACTION_GROUP, {})",
        f"{_S}/broker/transactions/test_transactions.py::test_the_progress_tells_a_broker_where_to_begin",
    ),
    # -- space, age, and the directory
    Fault(
        "The disk is more than `diskSpaceWarningLevelRatio`", f"{_E}/broker/write/disk_space.py",
        "            if percent > limit:",
        "            if percent > 100:",
        f"{_S}/broker/write/test_disk_space.py::test_above_the_warning_level_nothing_is_written_and_everything_is_read",
    ),
    Fault(
        "A table in `config/` would grow above 64 MiB.", f"{_E}/broker/metadata/json_table.py",
        "if len(new_text) > SIZE_MAX:",
        "if len(new_text) > 2 * SIZE_MAX:",
        f"{_S}/broker/metadata/test_json_table.py::test_a_table_that_could_not_be_read_again_is_not_written",
    ),
    Fault(
        "Messages get old.", f"{_E}/broker/store/retention.py",
        "expired = modified_ms + settings.file_reserved_time * _HOUR_MS <= now_ms",
        "expired = modified_ms <= now_ms",
        f"{_S}/broker/store/test_retention.py::test_expired_files_go_in_the_hours_of_delete_when_whatever_was_consumed",
    ),
    Fault(
        "A process that deletes old messages is killed", f"{_E}/log/retention.py",
        "    if known is None or known[0].end < end:\n        save_progress(log)\n",
        "",
        f"{_S}/log/test_retention.py::test_a_store_that_was_just_filled_saves_its_progress_first",
    ),
    Fault(
        "A file is deleted while a process reads it.", f"{_E}/broker/read/queues.py",
        "                raise self._record_is_gone(*queue, error.requested) from error\n",
        "                raise\n",
        f"{_S}/broker/store/test_retention.py::test_a_segment_that_goes_in_mid_read_is_out_of_range_with_the_new_minimum",
    ),
    Fault(
        "The store's directory, or its `commitlog`, is moved, deleted or replaced while a process", f"{_E}/files/rooted.py",
        "        if not self.is_in_place():\n            raise self.replaced()\n",
        "        self.is_in_place()\n",
        f"{_S}/test_store_replaced.py::test_a_writer_whose_store_was_replaced_says_so_and_touches_nothing_of_what_is_there",
    ),
    Fault(
        "A broker keeps its store in another way", f"{_E}/kinds/detection.py",
        "        if one.kind.effect in effects:\n",
        "        if one.kind.effect in effects[1:]:\n",
        f"{_S}/kinds/test_detection.py::test_a_dledger_log_is_neither_read_nor_written_nor_taken_for_nothing",
    ),
    # -- damage
    Fault(
        "Lengths or position of a record are damaged on disk.", f"{_E}/broker/read/records.py",
        "            raise CorruptRecordError(path, error.offset, error.reason) from error\n",
        "            raise CorruptRecordError(\"\", 0, error.reason) from error\n",
        f"{_S}/broker/read/test_records.py::test_what_is_damaged_is_named_though_segments_share_a_run",
    ),
    Fault(
        "A byte inside a body or a property is damaged.", f"{_E}/format/frames/frame_crcs.py",
        "    damaged = np.ones(len(tails), np.bool_)\n",
        "    return np.zeros(len(tails), np.bool_)\n    damaged = np.ones(len(tails), np.bool_)\n",
        f"{_S}/broker/delay/test_scheduler_damage.py::test_damaged_properties_are_not_laundered",
    ),
    Fault(
        "A producer sent a body that its flag calls compressed", f"{_E}/client/consume_service/consume_concurrently.py",
        "        if batch.is_undecoded:\n            log_failure(self._group, self._name(shown, queue))\n",
        "        if batch.is_undecoded and not shown:\n            log_failure(self._group, self._name(shown, queue))\n",
        f"{_S}/client/consumers/test_push_undecodable.py::test_it_becomes_a_dead_letter_and_its_neighbours_are_consumed",
    ),
    Fault(
        "A message is damaged that a `SimpleConsumer` should get.", f"{_E}/broker/pop/pop_selection.py",
        "one.visible_at_ms > now_ms and one.key not in damaged for one in messages",
        "one.visible_at_ms > now_ms for one in messages",
        f"{_S}/broker/pop/test_pop_queues.py::test_a_damaged_message_locks_no_queue",
    ),
    Fault(
        "After a clean close, files of a queue are lost", f"{_E}/log/integrity/queue_ends.py",
        "if end > 0 and not self._is_there(log, key, end, log_end)]",
        "if end > 1 << 60 and not self._is_there(log, key, end, log_end)]",
        f"{_S}/log/integrity/test_queue_ends.py::test_a_lost_queue_is_made_again_and_its_offsets_stay_what_they_were",
    ),
    Fault(
        "After killed writers, files of a queue are lost", f"{_E}/log/integrity/corrupt_queues.py",
        "        return [key for key in views.keys() if _is_corrupt(log, views, key, ends.get(key, 0), end, log_end)]",
        "        return []",
        f"{_S}/log/integrity/test_corrupt_queues.py::test_a_queue_does_not_end_where_more_than_a_page_has_rotted",
    ),
    Fault(
        "The newest file of a queue rots while the store is open.", f"{_E}/log/views/consume_queue.py",
        "            found = self._end(bases, end, confirm, is_record)\n",
        "            found = self._end(bases, end, confirm, lambda *place: False)\n",
        f"{_S}/log/integrity/test_corrupt_queues.py::test_in_an_open_store_no_queue_ends_in_a_rotten_sector",
    ),
    Fault(
        "The newest message of a queue is damaged.", f"{_E}/log/core/commit_log.py",
        "            if not self.is_whole_entry(topic, queue_id, offset, size, queue_offset):\n                raise",
        "            if not self.is_whole_entry(topic, queue_id, offset, size, queue_offset):\n                return False\n                raise",
        f"{_S}/log/integrity/test_accepted_damage.py::test_a_damaged_newest_record_of_a_queue_does_not_make_its_place_free",
    ),
    Fault(
        "Recovery finds damage below what was once synced.", f"{_E}/log/recovery/recovery_table.py",
        "in_unit=None, foreign=False, action=Action.REFUSE",
        "in_unit=None, foreign=False, action=Action.CUT_TAIL",
        f"{_S}/log/recovery/test_recovery.py::test_records_that_were_on_disk_are_never_cut_and_a_refusal_changes_nothing",
    ),
    Fault(
        "`rmq repair` is killed, or the disk becomes full", f"{_E}/log/recovery/rebuild.py",
        "    return os.path.lexists(root / REBUILD_FILE)",
        "    return False",
        f"{_S}/broker/repair/test_repair_killed.py::test_a_repair_of_queues_that_was_killed_is_ended_by_who_opens_the_store",
    ),
    Fault(
        "The disk does not give back a sector.", f"{_E}/verify/files.py",
        "        bad = list(unreadable(fd, size))",
        "        bad = list(unreadable(fd, size))[1:]",
        f"{_S}/log/recovery/test_unreadable.py::test_an_unreadable_page_of_the_log_is_named_and_costs_its_records",
    ),
    # -- batches and offsets
    Fault(
        "A batch fails, or the driver is killed.", f"{_K}/read/stream_reader.py",
        "        self._complete(plan.begin, ranges, away)\n",
        "        self._complete(moved(plan.begin, plan.available), ranges)\n",
        f"{_C}/read/test_stream_planning.py::test_offsets_are_committed_when_the_start_moves_and_never_ahead_of_it",
    ),
    Fault(
        "The query ends, with `AvailableNow` too.", f"{_K}/read/group.py",
        "        if commit:\n            self._store.commit_offsets(self._group, commit)\n",
        "",
        f"{_C}/read/test_source_spark.py::test_a_stream_commits_its_group_also_for_the_last_batch_of_available_now",
    ),
    Fault(
        "The query ends before it has asked for the next batch.", f"{_K}/read/stream_reader.py",
        "        if not is_blind:\n            self._complete(plan.begin, ranges, away)\n",
        "",
        f"{_C}/read/test_source_spark.py::test_with_trigger_once_the_next_run_commits_the_batch",
    ),
    Fault(
        "A topic is no longer subscribed when the query starts again.", f"{_K}/read/stream_reader.py",
        "for queue, offset in position.next.items() if queue in ranges or queue in away}",
        "for queue, offset in position.next.items()}",
        f"{_C}/read/test_stream_continuity.py::test_a_group_goes_on_without_a_topic_that_was_unsubscribed_or_deleted",
    ),
    Fault(
        "The checkpoint is lost.", f"{_K}/read/starting_offsets.py",
        "    start = _committed(store, options, ranges)\n    if start and",
        "    start: dict[Queue, int] = {}\n    if start and",
        f"{_C}/read/test_stream_planning.py::test_a_committed_offset_wins_over_the_option_with_a_warning",
    ),
    Fault(
        "A queue of a cluster turns up that the query did not see", f"{_K}/read/away_brokers.py",
        "    return {**first, **older}\n",
        "    return first\n",
        f"{_C}/read/test_late_queues.py::test_a_latest_stream_leaves_out_what_is_older_than_its_start",
    ),
    Fault(
        "A group has no committed offset in its retry topic.", f"{_K}/read/starting_offsets.py",
        "if options.consume_from_where == FROM_LAST and not retry:",
        "if options.consume_from_where == FROM_LAST:",
        f"{_C}/read/test_starting_offsets.py::test_a_retry_topic_is_read_from_its_beginning",
    ),
    Fault(
        "The group has committed an offset beyond the end of a queue.", f"{_K}/read/starting_offsets.py",
        "        if offset > ranges[queue].max_offset\n",
        "        if offset > ranges[queue].max_offset + (1 << 40)\n",
        f"{_C}/read/test_starting_offsets.py::test_a_committed_offset_behind_the_end_means_that_the_store_lost_messages",
    ),
    Fault(
        "Nobody polls the store when a delayed message is due.", f"{_K}/read/stream_reader.py",
        "        due_ms = self._deliver_due(store, _DELIVERED_AT_ONCE)\n",
        "        due_ms = None\n",
        f"{_C}/read/test_retry_source.py::test_due_messages_are_delivered_before_the_queues_are_looked_at",
    ),
    # -- lost and damaged messages
    Fault(
        "Messages are gone that should be read.", f"{_K}/read/loss_detection.py",
        "for part in lost(wanted, bounds)]",
        "for part in lost(wanted, bounds)[1:]]",
        f"{_C}/read/test_loss.py::test_a_lost_beginning_is_named_exactly_and_the_rest_is_read",
    ),
    Fault(
        "Retention wants to delete messages that a stream has planned.", f"{_K}/read/stream_reader.py",
        "        pin = _pin(store, wanted, ranges)\n",
        "        pin = None\n",
        f"{_C}/read/test_loss.py::test_retention_waits_for_what_a_batch_has_planned",
    ),
    Fault(
        "Messages are damaged that should be read.", f"{_K}/read/slice_reader.py",
        "            piece.missing.append(part.start)\n",
        "            pass\n",
        f"{_C}/read/test_loss.py::test_damaged_messages_fail_a_read_and_are_left_out_and_reported_only_if_asked_for",
    ),
    Fault(
        "Tags leave messages out.", f"{_E}/broker/read/queues.py",
        "                lost &= tag_filter.may_match(",
        "                tag_filter.may_match(",
        f"{_C}/read/test_loss.py::test_lost_messages_that_tags_leave_out_are_no_loss",
    ),
    Fault(
        "A topic was deleted, or its `readQueueNums` was lowered", f"{_K}/read/loss_detection.py",
        "            if offset < end:\n",
        "            if offset > end:\n",
        f"{_C}/read/test_stream_continuity.py::test_unread_messages_in_a_queue_that_was_closed_for_reading_are_loss",
    ),
    Fault(
        "`readQueueNums` is lowered, and raised again.", f"{_K}/read/loss_detection.py",
        "            going_on[queue] = max(offset, end)\n",
        "            pass\n",
        f"{_C}/read/test_stream_continuity.py::test_a_queue_that_was_closed_goes_on_where_it_was_read_to_when_it_is_opened_again",
    ),
    Fault(
        "`assign` names a queue that `readQueueNums` closes.", f"{_K}/read/starting_offsets.py",
        "            if queue_id not in ranges:\n                has",
        "            if queue_id not in ranges and queue_id is None:\n                has",
        f"{_C}/read/test_starting_offsets.py::test_subscriptions_name_topics_match_them_or_assign_queues",
    ),
    Fault(
        "`assign` no longer names a queue", f"{_K}/read/loss_detection.py",
        "        elif is_assigned:\n            going_on[queue] = offset\n",
        "        elif is_assigned:\n            continue\n",
        f"{_C}/read/test_stream_continuity.py::test_a_queue_that_assign_leaves_out_goes_on_where_it_was_read_to_when_it_is_named_again",
    ),
    # -- replaced stores
    Fault(
        "Another store is under the same path.", f"{_K}/read/loss_detection.py",
        "    if not is_same_store(position.store, store.identity):",
        "    if position.store is None:",
        f"{_C}/read/test_stream_continuity.py::test_another_store_under_the_same_path_is_always_an_error",
    ),
    Fault(
        "The store's directory, or its `commitlog`, is moved, deleted or replaced while a query runs.", f"{_K}/read/stream_reader.py",
        "        if self._store is not None and not self._store.identity.is_unchanged():\n            self._forget()\n",
        "",
        f"{_C}/read/test_stream_stores.py::test_a_store_that_is_replaced_under_a_running_stream_is_noticed_at_the_next_look",
    ),
    Fault(
        "Files are replaced in place", f"{_K}/read/loss_detection.py",
        "if unknown is None or not has_all(store, position, ranges):",
        "if unknown is None:",
        f"{_C}/read/test_stream_stores.py::test_files_that_are_replaced_where_they_lie_under_a_running_stream_are_noticed",
    ),
    Fault(
        "The store lost its newest messages in a power cut.", f"{_K}/read/loss_detection.py",
        "            if found is not None and not found.may_be(fingerprint):\n                lost[queue]",
        "            if found is not None and found != found:\n                lost[queue]",
        f"{_C}/read/test_stream_continuity.py::test_a_store_that_was_rolled_back_and_written_again_is_noticed_by_the_message_before",
    ),
    Fault(
        "With `failOnDataLoss=false`, the store lost messages that the query had read", f"{_K}/read/loss_detection.py",
        "        start = None if fingerprint is None else stored_after(store, queue, fingerprint)\n",
        "        start = None\n",
        f"{_C}/read/test_stream_continuity.py::test_messages_that_came_instead_of_read_ones_are_all_read_and_those_are_reported",
    ),
    Fault(
        "The same, but the clock was set back over the cut", f"{_K}/read/loss_detection.py",
        "limits.min_offset if start is None or start >= offset else start, offset))",
        "offset - 1 if start is None or start >= offset else start, offset))",
        f"{_C}/read/test_stream_continuity.py::test_if_times_do_not_tell_where_other_messages_begin_all_before_the_position_are_reported",
    ),
    # -- brokers of a cluster that are away
    Fault(
        "A broker goes away while a stream runs", f"{_K}/read/loss_detection.py",
        "        if queue in away:\n            continue\n",
        "",
        f"{_C}/read/test_away_brokers.py::test_a_query_is_started_again_while_a_broker_is_away",
    ),
    Fault(
        "A broker goes away, or comes back, between two questions", f"{_K}/access/cluster_reader.py",
        "                if not is_away(error) or away >= self.away().keys():\n",
        "                if True:\n",
        f"{_C}/read/test_questions.py::test_a_broker_goes_at_each_question_for_the_start_of_a_late_queue",
    ),
    Fault(
        "Name servers go away, begin again", f"{_K}/cluster_read/look.py",
        "            before = self._addresses_seen.get(broker_name, {}).get(broker_id, told)\n",
        "            before = None\n",
        f"{_C}/read/test_away_brokers.py::test_a_running_query_does_not_notice_that_name_servers_are_away_or_know_nothing",
    ),
    Fault(
        "A stream starts beside name servers", f"{_K}/cluster_read/awaited_brokers.py",
        "        if now_ms - since_ms >= REGISTERED_AFTER_MS or not knows_nothing(self._cluster, min(topics)):\n",
        "        if True:\n",
        f"{_C}/read/test_waiting.py::test_a_new_query_waits_for_brokers_to_register",
    ),
    Fault(
        "A broker with messages of a planned batch goes away", f"{_K}/read/stream_reader.py",
        "        return [*existing, *(part for part in wanted if part.queue in away)]\n",
        "        return existing\n",
        f"{_C}/read/test_away_brokers.py::test_a_planned_batch_keeps_its_ranges",
    ),
    Fault(
        "The broker of a task is away.", f"{_K}/cluster_read/range_reader.py",
        "wanted, away_ms=self._away_ms, sleep=self._sleep",
        "wanted, sleep=self._sleep",
        f"{_C}/read/test_waiting_tasks.py::test_a_task_reads_its_range_when_its_broker_is_back_within_the_bound",
    ),
    Fault(
        "A broker comes back without messages", f"{_K}/read/loss_detection.py",
        "            back = unknown - away\n",
        "            back = frozenset[str]()\n",
        f"{_C}/read/test_away_brokers.py::test_all_marks_of_a_broker_that_is_back_are_compared",
    ),
    Fault(
        "A broker lost the end of its log", f"{_K}/read/loss_detection.py",
        "{queue: first[broker] for queue in unmarked if (broker := broker_of(queue.queue_id)) in first}",
        "dict[Queue, Fingerprint]()",
        f"{_C}/read/test_cluster_stream.py::test_all_queues_of_a_broker_go_back_to_what_has_replaced_its_lost_end",
    ),
    Fault(
        "A broker lost only the newest messages", f"{_K}/cluster_read/known_ends.py",
        "            if known[0] < stored_ms:\n",
        "            if known[0] > stored_ms:\n",
        f"{_C}/read/test_cluster_stream.py::test_the_newest_message_that_was_read_of_a_broker_tells_of_its_lost_end",
    ),
    Fault(
        "A broker is away, and the stream has `onBrokerAway=wait`", f"{_K}/query/absences.py",
        "        return set(away) if self._options.on_broker_away == WAIT else",
        "        return set() if self._options.on_broker_away == WAIT else",
        f"{_C}/read/test_away_brokers.py::test_wait_plans_nothing_until_the_broker_is_back",
    ),
    Fault(
        "The lag of queues is asked for while", f"{_K}/lag/lag_tracking.py",
        "lag, count = None if end is None else",
        "lag, count = 0 if end is None else",
        f"{_C}/lag/test_lag_listener.py::test_the_lag_of_a_broker_that_is_away_is_unknown_and_the_broker_is_named",
    ),
    Fault(
        "A batch is completed while the master", f"{_E}/client/group/lease_offsets.py",
        "        self.stay(self._moved_on(late, cluster))\n",
        "",
        f"{_S}/client/group/test_lease_offsets.py::test_an_offset_that_an_operator_moves_at_a_broker_that_is_back_stays",
    ),
    Fault(
        "A broker comes back, and another client has the lock", f"{_E}/client/group/group_lease.py",
        "        if not ours or not set(ours).isdisjoint(broker_names):\n",
        "        if True:\n",
        f"{_S}/client/group/test_group_lease.py::test_the_lock_of_a_query_that_has_ended_is_waited_for_where_a_broker_comes_back",
    ),
    Fault(
        "A query starts while brokers still show a run", f"{_E}/client/group/lease_member.py",
        "is_earlier = self._is_of_query(one) and now_s - shown_s[one] < GHOST_LASTS_S",
        "is_earlier = False",
        f"{_S}/client/group/test_group_lease.py::test_an_earlier_run_of_the_query_is_waited_for_130_s_and_named_if_it_lives",
    ),
    Fault(
        "The name servers do not know the broker of a dead letter.", f"{_E}/client/cluster_retry/redrive_ledger.py",
        "            self._check_is_registered(ledger.broker_name)\n",
        "",
        f"{_C}/retry/test_cluster_redrive.py::test_the_column_is_null_and_not_false_beside_a_name_server_that_does_not_know_the_broker",
    ),
    Fault(
        "`rmq checkpoint forget-broker` takes a broker out", f"{_K}/checkpoint/forgetting.py",
        "for queue, value in values.items() if broker_of(queue.queue_id) != broker}",
        "for queue, value in values.items() if broker_of(queue.queue_id) is None}",
        f"{_S}/cli/test_forget_broker.py::test_the_query_goes_on_without_the_broker",
    ),
    # -- groups
    Fault(
        "A second query starts with the same group and topic.", f"{_K}/read/group.py",
        "                    if max(waited_s, monotonic() - began_s) >= CLAIM_TIMEOUT_S:\n                        raise LeaseHeldError(",
        "                    if max(waited_s, monotonic() - began_s) >= CLAIM_TIMEOUT_S:\n                        break\n                        raise LeaseHeldError(",
        f"{_C}/read/test_stream_planning.py::test_a_second_query_of_the_group_is_refused_by_name_before_it_reads",
    ),
    Fault(
        "A second query starts with the same group and other topics.", f"{_K}/read/stream_reader.py",
        "                member.claim([*(queue.topic for queue in now.ranges), *own])",
        "                member.claim([*(queue.topic for queue in now.ranges)])",
        f"{_C}/read/test_retry_source.py::test_one_query_of_a_group_takes_what_comes_back_and_a_second_one_hears_of_it_at_its_start",
    ),
    Fault(
        "A push, lite pull or simple consumer, or `rmq consume`, starts as the group", f"{_E}/broker/metadata/topic_use.py",
        "        holders = self._wait_for(self._lock.try_shared, self._stream)\n        if holders is not None:",
        "        holders = self._wait_for(self._lock.try_shared, self._stream)\n        if holders:\n            return\n        if holders is not None:",
        f"{_S}/broker/metadata/test_topic_use.py::test_a_consumer_is_refused_while_a_stream_has_the_topic",
    ),
    Fault(
        "A query starts as a group whose consumers read the topic.", f"{_E}/broker/metadata/topic_use.py",
        "            self._use.take_alone()\n",
        "            pass\n",
        f"{_S}/broker/metadata/test_topic_use.py::test_a_stream_is_refused_while_consumers_share_the_topic",
    ),
    Fault(
        "A topic that `subscribePattern` matches appears while the query runs, and consumers", f"{_K}/read/group.py",
        "            if topic in self._leases:\n                continue\n",
        "            if self._leases:\n                continue\n",
        f"{_C}/read/test_stream_planning.py::test_two_topics_of_one_group_have_a_lease_and_offsets_each",
    ),
    Fault(
        "A consumer that broadcasts, queues that a lite pull consumer was assigned", f"{_E}/broker/metadata/topic_use.py",
        "        self._path = group_directory(self._root, group) / (file_stem(topic) + \".use\")",
        "        self._path = group_directory(self._root, \"all\") / (file_stem(topic) + \".use\")",
        f"{_S}/broker/metadata/test_topic_use.py::test_a_consumer_that_broadcasts_is_not_refused_and_refuses_nobody",
    ),
    Fault(
        "The holder of a group is killed.", f"{_E}/broker/metadata/leases.py",
        "        if not self._lock.try_exclusive():\n            raise self._held_by_other()\n        try:\n            now_ms",
        "        if self._path.exists() or not self._lock.try_exclusive():\n            raise self._held_by_other()\n        try:\n            now_ms",
        f"{_S}/broker/metadata/test_leases.py::test_a_killed_holder_frees_the_lease_at_once",
    ),
    # -- failures of tasks and drivers
    Fault(
        "A task fails and runs again, or two attempts run.", f"{_E}/broker/write/staging.py",
        "        self._name = f\"{partition_id}-{attempt}-{uuid.uuid4().hex}.arrow\"",
        "        self._name = f\"{partition_id}.arrow\"",
        f"{_C}/write/test_sink_tasks.py::test_a_zombie_attempt_changes_nothing_before_or_after_the_commit",
    ),
    Fault(
        "The driver is killed before the append.", f"{_K}/write/store_sink.py",
        "return match is not None and int(match[1]) <= batch_id",
        "return match is not None and int(match[1]) < 0",
        f"{_C}/write/test_sink_tasks.py::test_what_a_killed_driver_staged_is_swept_by_the_next_commit_of_its_query_only",
    ),
    Fault(
        "Spark cuts the tasks in another way the second time.", f"{_E}/broker/write/writer.py",
        "        content = sum(file.content_sum for file in files) & CONTENT_SUM_MASK\n",
        "        content = sum((n + 1) * file.content_sum for n, file in enumerate(files)) & CONTENT_SUM_MASK\n",
        f"{_C}/write/test_sink_tasks.py::test_a_repeated_batch_may_be_cut_into_other_partitions",
    ),
    Fault(
        "A row breaks a rule", f"{_E}/broker/write/staging.py",
        "with rows_from(self._rows, self.partition_id):",
        "with rows_from(0, 0):",
        f"{_S}/broker/write/test_staged_rows.py::test_a_message_that_breaks_a_rule_is_named_by_its_row_in_the_task",
    ),
    Fault(
        "The session stops, or its driver ends, right after a commit.", f"{_K}/access/store_writer.py",
        "    close_before_it_ends()\n",
        "",
        f"{_C}/access/test_store_pool.py::test_what_a_worker_keeps_open_is_closed_when_its_session_ends",
    ),
    Fault(
        "The store cannot be closed after the append", f"{_K}/access/store_pool.py",
        "                _log.exception(\"%s could not be closed\", name)\n",
        "                raise\n",
        f"{_C}/write/test_sink_tasks.py::test_a_store_that_cannot_be_closed_after_a_commit_does_not_fail_it",
    ),
    Fault(
        "The fsync after the append fails, `ASYNC_FLUSH`.", f"{_E}/log/append/flush.py",
        "    except FsyncError as error:\n        page.poison = 1\n",
        "    except FsyncError as error:\n",
        f"{_C}/access/test_store_pool.py::test_a_flush_that_fails_behind_a_commit_is_told_to_the_next_one_and_its_rows_are_not_lost",
    ),
    Fault(
        "The fsync after the append fails, or its lock is held for too long, `SYNC_FLUSH`.", f"{_K}/access/store_writer.py",
        "        store.flush()\n    except",
        "        pass\n    except",
        f"{_C}/write/test_sink_tasks.py::test_a_batch_of_which_nobody_knows_whether_it_is_on_disk_is_not_said_to_be_unwritten",
    ),
    Fault(
        "Power cut, `ASYNC_FLUSH`. | The newest batches", f"{_K}/access/store_writer.py",
        "            store.flush_async()\n",
        "            pass\n",
        f"{_C}/access/test_store_pool.py::test_what_a_stream_has_committed_is_flushed_at_once_however_little_it_is",
    ),
    # -- repeated batches
    Fault(
        "Two queries write to one topic.", f"{_K}/write/store_sink.py",
        "        return self._marker(\"sink\", query_id, batch_id),",
        "        return self._marker(\"sink\", \"query\", batch_id),",
        f"{_C}/write/test_sink_tasks.py::test_batches_of_two_queries_are_told_apart_though_their_numbers_are_one",
    ),
    Fault(
        "Retention has deleted the batch, and Spark runs it again.", f"{_E}/broker/store/unit_markers.py",
        "            if units:\n",
        "            if not units:\n",
        f"{_C}/write/test_sink_tasks.py::test_a_marker_outlives_the_segment_that_it_was_written_to",
    ),
    Fault(
        "The repeated batch has other rows, because the query gives other rows each time.", f"{_E}/broker/write/writer.py",
        "        if repeatable and (found.row_count",
        "        if not repeatable and (found.row_count",
        f"{_C}/write/test_sink_tasks.py::test_a_repeated_batch_with_other_rows_is_an_error_unless_the_query_says_so",
    ),
    Fault(
        "The repeated batch has other rows, because the query's source", f"{_K}/access/store_writer.py",
        "        if store.last_unit(marker.purpose, marker.key) != marker.value:\n            raise\n",
        "        if store.last_unit(marker.purpose, marker.key) == marker.value:\n            raise\n",
        f"{_C}/write/test_sink_repetitions.py::test_a_repeated_batch_that_lost_messages_is_refused_until_its_owner_says_that_it_is_the_same",
    ),
    Fault(
        "A checkpoint was copied or set back.", f"{_E}/broker/write/writer.py",
        "        if found.value > unit.value:\n            raise MarkerError(",
        "        if found.value > unit.value:\n            return False\n            raise MarkerError(",
        f"{_C}/write/test_sink_tasks.py::test_an_older_batch_is_an_error",
    ),
    Fault(
        "`rmq checkpoint rewind` has written a new checkpoint.", f"{_K}/checkpoint/rewinding.py",
        "    query_id = str(uuid.uuid4())\n",
        "    query_id = rewind.checkpoint.query_id\n",
        f"{_S}/cli/test_checkpoint_command.py::test_the_new_query_begins_where_it_is_told_to",
    ),
    Fault(
        "Retention deleted the segment with the marker.", f"{_E}/broker/store/retention.py",
        "            units = 0 if self._is_replica else self._markers.carry(end, expired_ms)\n",
        "            units = 0\n",
        f"{_S}/broker/store/test_retention_units.py::test_the_newest_marker_of_each_key_survives_its_segment_again_and_again",
    ),
    Fault(
        "The store is missing when a query continues", f"{_K}/access/store_writer.py",
        "    if batch_id == 0:\n        prepare_to_write(options)\n",
        "    if batch_id >= 0:\n        prepare_to_write(options)\n",
        f"{_C}/write/test_sink_tasks.py::test_a_stream_does_not_go_on_into_a_new_store_when_its_own_is_gone",
    ),
    Fault(
        "No store is at the path when a query starts.", f"{_K}/access/store_writer.py",
        "    if not options.create_store:\n",
        "    if options.create_store is None:\n",
        f"{_C}/access/test_store_reader.py::test_without_create_store_a_write_makes_none",
    ),
    # -- records at the brokers of a cluster
    Fault(
        "A task dies after it has sent some of its rows", f"{_E}/client/cluster_sink/task.py",
        "        return None if self._check is None else self._check.found\n",
        "        return None\n",
        f"{_S}/client/cluster_sink/test_outages.py::test_a_batch_is_stored_once_though_both_masters_were_killed_in_turn",
    ),
    Fault(
        "The answer to a send is lost.", f"{_E}/client/cluster_sink/pipeline.py",
        "        if verdict.outcome is SendOutcome.UNKNOWN and self._verifier is not None:\n",
        "        if verdict.outcome is None and self._verifier is not None:\n",
        f"{_S}/client/cluster_sink/test_pipeline.py::test_a_send_of_unknown_outcome_is_not_repeated_before_its_queue_was_read",
    ),
    Fault(
        "The master with rows in doubt is away.", f"{_E}/client/delivery/queue_reading.py",
        "            self._cluster, self._questions(queues), until_ms,\n",
        "            self._cluster, self._questions(queues), 0.0,\n",
        f"{_S}/client/cluster_sink/test_outages.py::test_rows_in_doubt_wait_for_their_broker",
    ),
    Fault(
        "The masters that may hold a record are killed in turn.", f"{_E}/client/cluster_sink/record_topic.py",
        "        for name in () if self._holders is None else self._holders.brokers:\n",
        "        for name in ():\n",
        f"{_S}/client/cluster_sink/test_holders.py::test_two_masters_that_are_killed_in_turn_hide_no_record",
    ),
    Fault(
        "The only master for a record is away.", f"{_E}/client/delivery/journal_topic.py",
        "        self._delivery = Delivery(cluster, reading.patience_ms, sleep=sleep)\n",
        "        self._delivery = Delivery(cluster, 1, sleep=sleep)\n",
        f"{_S}/client/cluster_sink/test_record_topic.py::test_a_record_waits_for_its_only_master_to_come_back",
    ),
    # -- batch writes
    Fault(
        "A batch write is run again.", f"{_K}/write/store_sink.py",
        "            return self._marker(\"txn\", application, version), None\n",
        "            return None, None\n",
        f"{_C}/write/test_sink_tasks.py::test_a_transaction_belongs_to_the_topic_that_is_written_to",
    ),
    Fault(
        "Another batch write to the same `topic` has the same", f"{_K}/write/store_sink.py",
        "if purpose == \"txn\" else name\n",
        "if purpose == \"\" else name\n",
        f"{_C}/write/test_sink_tasks.py::test_a_transaction_belongs_to_the_topic_that_is_written_to",
    ),
    Fault(
        "A batch write has mode `overwrite`.", f"{_K}/write/sink.py",
        "    if overwrite is not None:\n        refuse(\n",
        "    if overwrite == \"\":\n        refuse(\n",
        f"{_C}/write/test_sink_spark.py::test_overwrite_and_complete_are_refused_with_a_reason",
    ),
    Fault(
        "Two `df.write` run in one `foreachBatch`.", f"{_K}/write/store_sink.py",
        "            if self._options.transaction is None:\n                return None, None\n",
        "            if self._options.transaction is None:\n                return self._marker(\"sink\", \"write\", 0), None\n",
        f"{_C}/write/test_sink_spark.py::test_two_writes_in_one_foreach_batch_both_arrive",
    ),
    # -- handlers
    Fault(
        "The handler raises an exception.", f"{_K}/retry/handler_runner.py",
        "            if batch.num_rows == 1:\n                verdicts.fail(start, reason_of(error))\n                return\n",
        "            for row in range(batch.num_rows):\n                verdicts.fail(start + row, reason_of(error))\n            return\n",
        f"{_C}/retry/test_consume_judge.py::test_an_exception_of_a_batch_handler_fails_the_guilty_rows_only",
    ),
    Fault(
        "The handler returns something that is no result.", f"{_K}/retry/handler_runner.py",
        "    refuse(\n        f\"the handler answered {result!r} for a row:",
        "    return DONE\n    refuse(\n        f\"the handler answered {result!r} for a row:",
        f"{_C}/retry/test_consume_judge.py::test_an_answer_that_is_no_result_fails_the_query_not_the_row",
    ),
    Fault(
        "`on_results` fails, or the flood breaker trips.", f"{_K}/retry/batch_consumer.py",
        "                self._watch.check(counts.rows, counts.dead, now_ms)\n",
        "                pass\n",
        f"{_C}/retry/test_consume_spark.py::test_the_flood_breaker_stops_the_query_before_anything_is_sent_back",
    ),
    # -- the driver and the checkpoint
    Fault(
        "The driver is killed before the failed rows are sent back.", f"{_K}/retry/batch_consumer.py",
        "        if found < batch_id:\n            self._run_began = True\n            return False\n",
        "        if found < batch_id:\n            self._run_began = True\n            return True\n",
        f"{_C}/retry/test_consume_spark.py::test_a_failing_message_walks_the_ladder_inside_a_job_and_ends_as_a_dead_letter",
    ),
    Fault(
        "The driver is killed after that, before Spark has recorded the batch. | The batch is done", f"{_K}/retry/batch_consumer.py",
        "            self._run_began = True\n            return True\n",
        "            self._run_began = True\n            return False\n",
        f"{_C}/retry/test_consume_spark.py::test_a_driver_killed_between_send_back_and_sparks_commit_sends_nothing_back_twice",
    ),
    Fault(
        "Messages of the batch are lost before it is repeated", f"{_K}/retry/batch_consumer.py",
        "        if found == batch_id and newest == _marker_value(batch_id, _digest(batch)):",
        "        if found == batch_id:",
        f"{_C}/retry/test_consume_spark.py::test_a_checkpoint_that_was_set_back_is_an_error_and_loses_no_failure",
    ),
    Fault(
        "The checkpoint is set back or copied. | `MarkerError` if", f"{_K}/retry/batch_consumer.py",
        "        if found < batch_id:\n",
        "        if found >= 0:\n",
        f"{_C}/retry/test_consume_spark.py::test_a_checkpoint_that_was_set_back_is_an_error_and_loses_no_failure",
    ),
    # -- wrong rows
    Fault(
        "The stream was read without the group", f"{_K}/retry/batch_consumer.py",
        "if not self._run_began and not location.is_consuming(self._group):",
        "if self._run_began and not location.is_consuming(self._group):",
        f"{_C}/retry/test_consume_spark.py::test_a_stream_that_would_never_see_its_failures_again_is_refused",
    ),
    Fault(
        "One message has several rows", f"{_K}/retry/handler_runner.py",
        "            _check_single(batch)\n",
        "",
        f"{_C}/retry/test_consume_judge.py::test_several_rows_of_one_message_are_refused_before_the_handler_sees_them",
    ),
    Fault(
        "Two rows with the option `sendBack` name one message", f"{_E}/broker/write/writer.py",
        "        staged.check(files, batches)\n",
        "",
        f"{_C}/write/test_retry_sink.py::test_a_message_that_a_join_made_two_rows_of_is_refused",
    ),
    Fault(
        "The group has no retry queues", f"{_K}/access/store_writer.py",
        "return store.groups()[options.send_back].retry_queue_nums > 0",
        "return store.groups()[options.send_back].retry_queue_nums >= 0",
        f"{_C}/write/test_retry_sink.py::test_a_group_that_drops_what_is_sent_back_is_warned_of",
    ),
    Fault(
        "Rows of another store, or of one that was rolled back, are sent back.", f"{_E}/broker/retry/send_back_batch.py",
        "        if other.any():\n",
        "        if other.all() and not len(other):\n",
        f"{_C}/write/test_retry_sink.py::test_a_row_that_names_no_message_of_this_store_is_refused_and_nothing_is_sent_back",
    ),
    Fault(
        "The failed rows came from `%RETRY%group` and are sent back", f"{_K}/write/store_sink.py",
        "        return Marker(SEND_BACK, f\"{self._options.send_back}/{name}\", value, self._options.repeatable)\n",
        "        return Marker(SEND_BACK, f\"{self._options.send_back}/{name}/{id(self)}\", value, self._options.repeatable)\n",
        f"{_C}/write/test_retry_sink.py::test_a_repeated_batch_adds_nothing_and_an_older_one_is_an_error",
    ),
    # -- effects in a database
    Fault(
        "`write_once`: the driver is killed before the commit of the database.", f"{_E}/reliable/inbox/batches.py",
        "            connection.execute(sa.insert(table), row)\n",
        "            connection.execute(sa.insert(table), row)\n            connection.commit()\n",
        f"{_S}/reliable/test_batches.py::test_a_chunk_that_fails_rolls_the_whole_batch_back",
    ),
    Fault(
        "`write_once`: the driver is killed after it", f"{_E}/reliable/inbox/batches.py",
        "            raise _WrittenBeforeError from error\n",
        "            pass\n",
        f"{_S}/reliable/test_batches.py::test_a_batch_is_written_once_however_often_it_is_given",
    ),
    Fault(
        "`write_once`: a chunk fails.", f"{_E}/reliable/inbox/batches.py",
        "                self._handlers.run(connection, partial(self._write, connection, left))\n",
        "                try:\n                    self._handlers.run(connection, partial(self._write, connection, left))\n                except Exception:\n                    pass\n",
        f"{_S}/reliable/test_batches.py::test_a_chunk_that_fails_rolls_the_whole_batch_back",
    ),
    Fault(
        "`write_once`: the answer to a commit is lost.", f"{_E}/reliable/inbox/batches.py",
        "        if read(self._engine, lambda connection: self._has_same_messages(connection, batch)):\n            return BatchResult(written_before=True)\n",
        "",
        f"{_S}/reliable/test_batches.py::test_a_commit_whose_answer_is_lost_is_not_repeated",
    ),
    Fault(
        "`write_once`: the checkpoint is set back, copied or deleted.", f"{_E}/reliable/inbox/batches.py",
        "return found is not None and tuple(found) == (batch.row_count, batch.digest)",
        "return found is not None",
        f"{_S}/reliable/test_batches.py::test_a_checkpoint_that_was_set_back_loses_nothing_and_repeats_nothing",
    ),
    Fault(
        "`consume(..., idempotency=...)`: a task or batch is repeated", f"{_E}/reliable/inbox/inbox.py",
        "    return inserted_ids(connection, tables.inbox, rows, token)\n\n\ndef done_ids",
        "    return set(message_ids)\n\n\ndef done_ids",
        f"{_C}/retry/test_consume_once.py::test_a_task_that_runs_again_has_its_effect_once",
    ),
    Fault(
        "`consume(..., idempotency=...)` with `outside=True`", f"{_E}/reliable/inbox/exactly_once.py",
        "            if not is_mine:\n                self._doubt(",
        "            if is_mine is None:\n                self._doubt(",
        f"{_S}/reliable/test_once.py::test_an_effect_elsewhere_of_two_workers_is_in_doubt",
    ),
    Fault(
        "A message comes twice: sent again", f"{_E}/reliable/inbox/inbox.py",
        "        {\"group_name\": group, \"message_id\": message_id, \"done_ms\": now_ms, \"token\": token}\n",
        "        {\"group_name\": group + token[:4], \"message_id\": message_id, \"done_ms\": now_ms, \"token\": token}\n",
        f"{_S}/reliable/test_inbox.py::test_a_message_is_done_once_for_each_group",
    ),
    Fault(
        "Several messages come with the id of one", f"{_E}/reliable/inbox/handling.py",
        "        if verdicts.outcomes[delivery.message_id] is HandlerOutcome.OTHER:\n",
        "        if verdicts.outcomes[delivery.message_id] is None:\n",
        f"{_S}/reliable/test_same_id.py::test_each_message_that_was_made_of_another_one_is_done_once",
    ),
)  # fmt: skip

TEETH: Final = {
    "A writer is killed before its append was complete.": "no_undo",
    "Power cut, `SYNC_FLUSH`. | Everything": "no_flush",
    "Power cut, `ASYNC_FLUSH`. | Everything": "no_flusher",
    "An fsync fails.": "no_poison",
    "A process is killed, or the power is cut, while it commits a half message.": "one_unit",
    "The disk is full.": "no_fallocate",
    "A reader keeps an old file open.": "pins",
    "Entries of a queue are damaged.": "record_owner",
    "The driver is killed after the append": "no_marker",
    "The disk becomes full in the middle of a commit.": "no_fallocate",
    "Power cut, `SYNC_FLUSH`. | Every batch": "no_flush",
}

OUTSIDE: Final = {
    "A reader is killed.": "a reader writes nothing",
    "Power cut, `ASYNC_FLUSH`, in the middle of the rows": "it promises nothing",
    "The store is moved to another file system with `mv`": "it promises nothing",
    "After killed writers, only the very last entries": "it promises nothing",
    "A checkpoint was deleted.": "Spark gives the query another id",
    "A batch write has mode `ignore` or `error`": "Spark refuses it",
    "A batch is repeated, and the sink is `foreachBatch`": "it promises nothing",
    "A handler ends its process": "Spark repeats the task",
    "A task is repeated.": "Spark keeps one answer of a task",
    "A handler never returns.": "it promises nothing",
    "The checkpoint is deleted.": "Spark gives the query another id",
    "The driver starts again.": "it promises nothing",
}
