"""Commands for submitted jobs: submit, list, logs, wait, cancel, delete, describe and others."""
