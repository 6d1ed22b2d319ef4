"""The wheel, the sdist and the launcher's file, as they are released."""
