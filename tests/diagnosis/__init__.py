"""How right the failure reports are."""
