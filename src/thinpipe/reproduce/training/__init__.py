"""Epipe's tables of what codecs do to accuracy: each row is trained, once for each seed, and recorded."""
