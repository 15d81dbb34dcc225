"""Helpers that tests of several folders share. A helper of one folder lies in that folder.

    interrupts, crc_ways               signals at every place, and each of the ways to take a CRC
    servers, server_*, smtp_server     PostgreSQL, MariaDB, Redis and a mail server, started for the tests
    kafka_*                            a real Kafka and one in memory, what is written into them, mirrors of them
    mirrored, mirrored_queues          records, messages and queues on both sides of a mirror
    consuming                          the consuming half of `rmq_store.reliable`
    spark_jvm                          the options of Spark's JVM, and the classes that it loads

`python tests/NAME.py` are commands, and stay in `tests/`: `cli_pages`, `conformance`, `layers`.
"""
