"""A cluster in a box: hosts of one machine, jobs on them, and faults."""
