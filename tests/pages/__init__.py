"""The documentation is true: commands run, links resolve, and figures are current."""
