"""A cluster in a box: virtual hosts on one machine, the jobs that run on them, and injected
faults.
"""
