"""Finds and changes what the commands of mqadmin show: of a store, and of a cluster. One class a kind and a target; the
two of a kind have the same methods, whose rows `mqadmin_print` prints.
"""
