"""Values that do nothing, for parts of a store that a cluster does not need."""

from __future__ import annotations


class NoSchedule:
    """Brokers deliver waiting messages themselves."""

    next_due_ms: int | None = None

    def deliver_due(self, limit: int | None = None) -> NoSchedule:
        """Nothing to deliver."""
        return self


class NoPin:
    """Nothing protects messages of a broker from its retention."""

    def release(self) -> None:
        """Nothing to release."""
