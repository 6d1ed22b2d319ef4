"""Whole programs of libraries that people train with."""
