"""The wheel, the sdist, and the launcher file, as they are released."""
