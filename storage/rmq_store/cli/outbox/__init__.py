"""`rmq resend`: the outbox of a database, and what people do about its messages."""
