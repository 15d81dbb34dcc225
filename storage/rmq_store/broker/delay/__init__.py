"""Delay levels and timers: due messages and their delivery (ScheduleMessageService, TimerMessageStore)."""
