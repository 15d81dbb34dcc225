"""Many messages at once: columns to frames, frames to columns, frames to changed copies."""
