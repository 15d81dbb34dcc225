"""Commands that look after a store: init, verify, repair, backup, retention, doctor, broker."""
