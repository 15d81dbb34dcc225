"""The commit log, its views (consume queues and hash index), and recovery. A change of how records, queue entries or
index entries reach the disk belongs here; what a message means belongs into `broker`.
"""
