"""Opening a log: where it ends after a crash, what is damaged, and which views are built again."""
