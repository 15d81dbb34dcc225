"""The JSON bodies of requests and answers, typed, and the JSON of Java's fastjson that they are written in.

Source: the package org.apache.rocketmq.remoting.protocol.body and its neighbours.
"""
