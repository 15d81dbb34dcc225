"""Slots that users share: one of them gets half at most, so that the others can still come in."""

from __future__ import annotations


class UserSlots:
    """Counts the slots of each user; those of the user "" are bounded only together. Belongs to one thread."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._count = 0

    def why_full(self, user: str, slots_max: int) -> str | None:
        """Why the user gets none of `slots_max` slots now; None: there is one."""
        if self._count >= slots_max:
            return f"all {slots_max} places are taken"
        if user and self._taken.get(user, 0) >= slots_max // 2:
            return f"user {user} has {slots_max // 2} of {slots_max} places, which is all that one user gets"
        return None

    def take(self, user: str) -> None:
        """Count a slot; see `why_full` first."""
        self._taken[user] = self._taken.get(user, 0) + 1
        self._count += 1

    def give_back(self, user: str) -> None:
        """Count a slot less."""
        left = self._taken[user] - 1
        if left:
            self._taken[user] = left
        else:
            del self._taken[user]
        self._count -= 1
