"""The views of the commit log: consume queues and the hash index, as files of one process."""
