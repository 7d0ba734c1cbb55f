"""Data sets that recipes and demos train on."""
