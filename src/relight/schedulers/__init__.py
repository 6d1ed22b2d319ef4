"""The schedulers that run jobs: one folder each, all with the interface of `api`."""
