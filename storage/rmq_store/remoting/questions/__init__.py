"""Questions and orders to brokers and name servers, one place for each request code: how it is asked, how its answer is
read, and what versions differ in. Nothing is sent here.
"""
