"""How agents find the coordinator of their job."""
