"""The page of what codecs do to accuracy: ``docs/results.md``, from the records of trained tables."""
