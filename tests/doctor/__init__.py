"""Tests for `relight doctor`: verdicts by table, and faults on real hosts."""
