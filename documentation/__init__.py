"""Generates the documentation: reference pages, the picture in the README, and the site."""
