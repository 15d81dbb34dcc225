"""Commands that maintain a store: init, verify, repair, backup, retention, doctor, broker."""
