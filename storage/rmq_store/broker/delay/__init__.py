"""Delay levels and timers: which messages are due, and their delivery (ScheduleMessageService, TimerMessageStore)."""
