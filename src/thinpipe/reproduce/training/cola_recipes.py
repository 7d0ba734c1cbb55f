"""Three ways to fine-tune on CoLA, epoch by epoch: Epipe's curves."""

from __future__ import annotations

from thinpipe.reproduce.training.sortquant import FROZEN
from thinpipe.reproduce.training.table import NONE, Published, Row, Table
from thinpipe.reproduce.training.works import COLA_FAIRSEQ, COLA_LORA, COLA_OWN, TEXT_SEEDS

COLA_RECIPES = Table(
    name="cola-recipes",
    title="Three settings for CoLA, RoBERTa-base",
    about="correlation on CoLA by epoch: Epipe's, fairseq's, LoRA's settings",
    rows=(
        Row(
            work=COLA_OWN,
            codec=NONE,
            series="Epipe's settings",
            published=Published(value=0.645, ratio=1.0, curve=((6, 0.645), (17, 0.645)), note="best of 20 epochs"),
        ),
        Row(
            work=COLA_FAIRSEQ,
            codec=NONE,
            series="fairseq's settings",
            published=Published(value=0.641, ratio=1.0, curve=((3, 0.641), (9, 0.57)), note="best of 10 epochs"),
        ),
        Row(
            work=COLA_LORA,
            codec=NONE,
            series="LoRA",
            published=Published(value=0.645, ratio=1.0, curve=((13, 0.645), (78, 0.60)), note="best of 80 epochs"),
        ),
        Row(
            work=COLA_OWN,
            codec="power:16/2",
            series="Epipe's settings, power:16",
            published=Published(
                value=0.635, ratio=0.146, curve=((3, 0.635), (7, 0.635), (20, 0.612)), note="best of 20 epochs"
            ),
        ),
    ),
    source="Published figures are the best epochs of Epipe's curves, and points of them, read off plots by eye. "
    f"{FROZEN}",
    needs="thinpipe\\[data,hf]; CoLA; RoBERTa-base, or --encoder; a GPU",
    time="estimated: half an hour a row and seed with a recent GPU, LoRA two hours; --tiny: 10 seconds",
    by_epoch=True,
    seeds=TEXT_SEEDS,
)
