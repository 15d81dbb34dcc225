"""A replica becomes a master, and an old master becomes a replica."""
