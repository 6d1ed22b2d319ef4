"""What a job shows of itself. It reads the agent's state and decides nothing."""
