"""The findings about a store and the planned repairs: the value between the two halves of `rmq repair`."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_settings import Settings
from rmq_store.broker.repair.repair_stamps import Stamps
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.repair.repair_views import index_tells_geometry
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.verify import Report


@dataclass(slots=True)
class Repair:
    """Findings about the store at `root`, and the planned repairs; made by `examine`.

    `report`: the verifier's report before the repair. `rebuild`: the views to build again, of "queues" and "index".
    `settings`: those of a store without a readable store.json. `seen`: the stamps of the files when they were examined.
    """

    root: Path
    report: Report
    findings: list[Finding]
    rebuild: set[str]
    trash: Trash
    seen: Stamps
    settings: Settings | None = None
    after: Report | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether the repair has anything to do."""
        return bool(self.findings or self.rebuild or self.report.problem_count or self.report.recovery)

    @property
    def log_is_damaged(self) -> bool:
        """Whether bytes of the log are damaged that were not accepted before."""
        return self.problem_count("commitlog") > 0 or any(finding.area == "log" for finding in self.findings)

    def problem_count(self, directory: str) -> int:
        """The number of problems that the verifier found in the directory, without foreign names."""
        foreign = {finding.path for finding in self.findings if finding.area == "names"}
        named = sum(bad.path in foreign and bad.path.startswith(f"{directory}/") for bad in self.report.problems)
        return self.report.damaged.get(directory, 0) - named

    @property
    def lost_settings(self) -> tuple[str, ...]:
        """RocketMQ's names of the settings that no file has: the caller must give them first."""
        return self.settings.lost if self.settings is not None else ()

    def view_actions(self) -> list[str]:
        """Repairs of queues and index, one sentence each."""
        actions = []
        if "queues" in self.rebuild:
            actions.append("consumequeue: copied, and built again from the log")
        if "index" in self.rebuild:
            text = "index: moved away, and built again from the log"
            if self.settings is not None and not index_tells_geometry(self.root, self.settings.config.geometry()):
                slots, entries = self.settings.config.max_hash_slot_num, self.settings.config.max_index_num
                text += f", with maxHashSlotNum={slots} and maxIndexNum={entries}: nothing tells what they were"
            actions.append(text)
        return actions
