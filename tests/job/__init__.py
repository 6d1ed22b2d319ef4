"""Descriptions of jobs, and what becomes of them until a scheduler has them."""
