"""Benchmarks: one file a table, each measured as ratios within one run."""
