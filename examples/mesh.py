"""Trains on real digits with replicas of a pipeline, and goes on where it stopped if a process is killed.

Run: ``torchrun --nproc-per-node 4 --max-restarts 1 examples/mesh.py --replicas 2 --folder runs/mesh --kill-at 20``. Two
replicas of two stages each take half of every batch. One process kills itself at step 20; torchrun starts all of them
anew, and they continue from the last checkpoint. The final weights are those of a run in which nothing happened.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn

from thinpipe import Pipeline, ReplicaBatches, checkpoint, join
from thinpipe.data.digits import load_digits


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train(args: argparse.Namespace, group: dist.ProcessGroup | None = None) -> None:
    digits = load_digits()
    torch.manual_seed(0)
    codecs = {"codec": "ef(block:4)", "grad_codec": "ef(block:4)"}
    shape = {"balance": [4, 3], "chunks": 4, "replicas": args.replicas, "group": group}
    with Pipeline(network(), loss_fn=nn.functional.cross_entropy, **shape, **codecs) as pipeline:
        optimizer = torch.optim.AdamW(pipeline.parameters(), lr=0.01)
        rows_of = {"replica": pipeline.replica, "replicas": pipeline.replicas}
        batches = ReplicaBatches(len(digits.train_labels), batch_size=128, shuffle=True, **rows_of)
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        found = checkpoint.load(args.folder, pipeline, optimizer) if restarted or not args.anew else None
        step = 0 if found is None else found.step
        for epoch in range(step // len(batches), args.epochs):
            batches.set_epoch(epoch, skip=step % len(batches))
            for rows in batches:
                pipeline.step(digits.train_images[rows], digits.train_labels[rows])
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % args.every == 0 or step == args.epochs * len(batches):
                    checkpoint.save(args.folder, pipeline, optimizer, step=step, keep=2)
                if step == args.kill_at and pipeline.rank == 1 and not restarted:
                    os.kill(os.getpid(), signal.SIGKILL)
        share = slice(pipeline.replica, None, pipeline.replicas)
        loss = pipeline.evaluate(digits.test_images[share], digits.test_labels[share])
        if pipeline.rank == 0:
            print(f"step {step}: test loss {loss:.3f}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--folder", required=True, help="where checkpoints are")
    words.add_argument("--anew", action="store_true", help="begin at step 0, whatever is in the folder")
    words.add_argument("--replicas", type=int, default=1)
    words.add_argument("--epochs", type=int, default=2)
    words.add_argument("--every", type=int, default=5, help="steps from one checkpoint to the next")
    words.add_argument("--kill-at", type=int, help="the step after which rank 1 kills itself, the first time")
    torch.set_num_threads(1)
    join("gloo")  # init_process_group, for programs that may be restarted
    train(words.parse_args())


if __name__ == "__main__":
    main()
