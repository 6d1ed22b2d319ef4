"""Makes the documentation: generated pages, the picture in the README, the site."""
