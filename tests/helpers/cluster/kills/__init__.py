"""Kills of Spark drivers and of brokers at named points of a micro-batch, and what is stored afterwards.

    plan        which kills there are, over points, queries and versions
    source      the data source under test, in a wrapper that stops in the commit where it is told to
    driver      the program that is killed: a query with a checkpoint, or batch writes with a version each
    session     such a program and all of its processes
    chain       kills one after another in one life of the broker, and the look at the topics after each
    results     a file for each kill, so that a run goes on where it stopped
"""
