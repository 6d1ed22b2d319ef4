"""Tests of `relight doctor`: judgements by table, faults on real hosts."""
