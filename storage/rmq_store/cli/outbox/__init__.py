"""`rmq resend`: the outbox of a database, and decisions of people about its messages."""
