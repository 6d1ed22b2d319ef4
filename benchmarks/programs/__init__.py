"""Programs that people train with, unmodified, under torchrun and relight without a flag."""
