from os import cpu_counts
