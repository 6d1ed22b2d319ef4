"""How accurate the failure reports are."""
