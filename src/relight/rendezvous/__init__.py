"""How agents find their job's coordinator."""
