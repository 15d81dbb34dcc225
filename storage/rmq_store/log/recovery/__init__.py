"""Opening a log: where it ends after a crash, which records are damaged, and which views are built again."""
