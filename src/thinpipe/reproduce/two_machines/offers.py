"""What is no recipe, for ``thinpipe serve --offer``: pipelines with nothing on the wire, and the small model.

``thinpipe reproduce two-machines --connect`` says which of them it misses at a server.
"""

from __future__ import annotations

from thinpipe.reproduce.two_machines.documents import CONV, CUT
from thinpipe.reproduce.two_machines.row import TINY_BOTTLENECKS
from thinpipe.reproduce.two_machines.work import Work

dry_before_relu = Work(cut=CUT, dry=True).offer
dry_before_relu_conv20k3s3_conv360 = Work(cut=CUT, bottleneck=CONV["0.097"], dry=True).offer
dry_before_relu_conv20k4s4_conv320 = Work(cut=CUT, bottleneck=CONV["0.070"], dry=True).offer
dry_pooled = Work(cut="pooled", dry=True).offer
tiny_before_relu = Work(cut=CUT, tiny=True).offer
tiny_before_relu_conv20k3s3_conv40 = Work(cut=CUT, bottleneck=TINY_BOTTLENECKS[0], tiny=True).offer
tiny_pooled = Work(cut="pooled", tiny=True).offer
tiny_dry_before_relu = Work(cut=CUT, tiny=True, dry=True).offer
tiny_dry_before_relu_conv20k3s3_conv40 = Work(cut=CUT, bottleneck=TINY_BOTTLENECKS[0], tiny=True, dry=True).offer
tiny_dry_pooled = Work(cut="pooled", tiny=True, dry=True).offer
