"""The disk usage of a store, and the limit above which nothing is written.

    usage = ceil(100 * used / (used + usable)), in percent of the file systems of commitlog/ and consumequeue/, the
    larger one; root's reserve does not count as usable

    > diskMaxUsedSpaceRatio         75    a warning in the log; expired files may be deleted at any hour
    > diskSpaceCleanForciblyRatio   85    files may be deleted before they expire (cleanFileForciblyEnable)
    > diskSpaceWarningLevelRatio    90    nothing is written, except for what retention must write before it deletes

A broker answers a put then with SERVICE_NOT_AVAILABLE, and goes on reading. 100 means never.
Source: DefaultMessageStore.CleanCommitLogService#isSpaceToDelete, UtilAll#getDiskPartitionSpaceUsedPercent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from rmq_store import real_time
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.errors import StoreFullError

_LOG = logging.getLogger(__name__)

# Between two looks at the file system while there is room.
LOOK_INTERVAL_S = 1.0

Usage = Callable[[Path], int | None]
"""Root of a store -> percent of its disk in use; None if that is unknown."""


def usage_percent(root: Path) -> int | None:
    """Percent of the store's disk in use, rounded up."""
    found = [_used_percent(path) for path in (root / "commitlog", root / "consumequeue") if path.is_dir()]
    known = [percent for percent in found if percent is not None]
    return max(known) if known else _used_percent(root)


def _used_percent(path: Path) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = status.f_blocks - status.f_bfree
    total = used + status.f_bavail
    return -(-100 * used // total) if total else None


class DiskSpace:
    """Watches the disk of one store open for writing. Safe for threads."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self._root = root
        self._config = config
        self._next_look_s = 0.0
        self._is_warned = False

    def check(self) -> None:
        """Return if the store may be written. It measures the disk once a second at most.

        Raises:
            StoreFullError: the disk is fuller than diskSpaceWarningLevelRatio. The next call measures again at once.
        """
        now_s = real_time.monotonic()
        if now_s < self._next_look_s:
            return
        percent = usage_percent(self._root)
        if percent is not None and percent > self._config.disk_space_warning_level_ratio:
            # Only now: another process may have changed the setting since this one opened the store.
            known = StoreFile.load(self._root)
            limit = (known.config if known else self._config).disk_space_warning_level_ratio
            if percent > limit:
                raise StoreFullError(
                    f"{self._root}: the disk is {percent} % full, and nothing is written above {limit} % "
                    "(diskSpaceWarningLevelRatio). Free some space (`rmq retention run` deletes old messages), or "
                    "raise that setting; 100 means never to refuse"
                )
        self._warn(percent)
        self._next_look_s = now_s + LOOK_INTERVAL_S

    def _warn(self, percent: int | None) -> None:
        is_filling = percent is not None and percent > self._config.disk_max_used_space_ratio
        if is_filling and not self._is_warned:
            _LOG.warning(
                "%s: the disk is %d %% full, more than diskMaxUsedSpaceRatio=%d; above %d %% nothing is written",
                self._root,
                percent,
                self._config.disk_max_used_space_ratio,
                self._config.disk_space_warning_level_ratio,
            )
        self._is_warned = is_filling
