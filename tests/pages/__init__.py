"""The pages are true: their commands run, their links lead somewhere, figures are current."""
