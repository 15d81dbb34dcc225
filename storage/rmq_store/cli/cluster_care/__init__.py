"""Commands that examine a store or a cluster: `rmq doctor`, `rmq metrics` and `rmq trace`. Each is declared once; a
module has what it finds at a store, and what at a cluster.
"""
