"""A replica of a live broker's log, fed from its HA port; what it asks the broker for; and the loop that follows it."""
