"""Work after the sender: first sends that did not happen, the timed resend, dead letters, notifications."""
