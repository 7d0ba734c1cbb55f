"""The tables whose rows are trained, by name."""

from __future__ import annotations

from thinpipe.reproduce.training.ablation import ABLATION
from thinpipe.reproduce.training.bottlenecks import BOTTLENECKS
from thinpipe.reproduce.training.cola_recipes import COLA_RECIPES
from thinpipe.reproduce.training.pipelines import PIPELINES
from thinpipe.reproduce.training.prune import PRUNE_SMALL, PRUNE_VS_QUANT
from thinpipe.reproduce.training.short import SHORT
from thinpipe.reproduce.training.small import SMALL
from thinpipe.reproduce.training.sortquant import SORTQUANT
from thinpipe.reproduce.training.table import Table
from thinpipe.reproduce.training.two_machines import ACCURACY

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *(*SORTQUANT, SMALL, BOTTLENECKS, ABLATION, PRUNE_VS_QUANT, PRUNE_SMALL, COLA_RECIPES),
        *(ACCURACY, *PIPELINES, *SHORT),
    )
}
