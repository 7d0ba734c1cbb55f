"""Stages: a model cut into parts, and a batch cut into micro-batches."""
