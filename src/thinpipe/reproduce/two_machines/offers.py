"""What is no recipe, for ``thinpipe serve --offer``: pipelines with nothing on the wire, and the small model.

``thinpipe reproduce two-machines --connect`` says which of them it misses at a server.
"""

from __future__ import annotations

from thinpipe.reproduce.two_machines.work import Work

dry_documents = Work(cut="documents", dry=True).offer
dry_pooled = Work(cut="pooled", dry=True).offer
tiny_documents = Work(cut="documents", tiny=True).offer
tiny_pooled = Work(cut="pooled", tiny=True).offer
tiny_dry_documents = Work(cut="documents", tiny=True, dry=True).offer
tiny_dry_pooled = Work(cut="pooled", tiny=True, dry=True).offer
