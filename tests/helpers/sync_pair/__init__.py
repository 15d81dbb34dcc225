"""Kills of a SYNC_MASTER of ours and of its slave of ours, again and again, in turns."""
