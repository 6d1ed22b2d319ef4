"""The pages say what is so: their commands run, their links lead somewhere, figures are current."""
