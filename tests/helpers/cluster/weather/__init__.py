"""Outages of real brokers and name servers under all kinds of clients at once (tests/cluster/test_weather_spark.py).

`events` has what happens, `members` the clients of this process, `driver` the streams of Spark, which are a program of
their own, and `scene` brings them together and counts.
"""
