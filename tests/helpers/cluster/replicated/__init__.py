"""Kills of masters and slaves, one of which is a released broker and the other one ours.

    plan       which kills there are, over pairs and versions
    senders    clients that send all the time, and know which messages were acknowledged
    own        a broker of ours as a process
    nursery    where these processes are forked
    pairs      a SYNC_MASTER and its slave, with a proxy between
    witness    the records of a log, read without anything of ours
    scene      kills one after another, and the look at the slave's directory after each
    run        all kills of a pair
"""
