"""Four rank processes that live as long as the tests do, and run one case after the other.

::

    test  --- {"case": "gradients", "world": 3, ...} --->  ranks 0, 1, 2      one line of JSON each, in and out
          <-- {"answer": ..., "threads": []} -----------

A rank that fails or hangs fails the test, with the traceback of every rank that has one, and the next test gets four
new processes.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RANKS = 4
PATIENCE = 30.0
"""Seconds in which a case must be done."""


class RanksFailed(AssertionError):
    """What went wrong on which rank."""


class _Rank:
    def __init__(self, rank, folder):
        self.errors = folder / f"rank-{rank}.err"
        script = Path(__file__).parent / "pipeline_rank.py"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, script, str(rank), str(folder / "store")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.answers = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put({"error": "the process ended"})

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self, until):
        try:
            return self.answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return {"error": "no answer in time"}

    def stop(self):
        self.process.kill()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        self.process.wait()

    def said(self):
        """What the rank wrote about itself, last of all where each of its threads is."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        return self.errors.read_text()[-6000:]


class RankPool:
    """Runs cases on real processes, which are started when the first case comes."""

    def __init__(self):
        self._ranks = []
        self._folder = None

    def run(self, case, world, **arguments):
        """Has the first ``world`` ranks run a case of pipeline_cases.py; returns what each of them answers."""
        if not self._ranks:
            self._folder = tempfile.TemporaryDirectory(prefix="thinpipe-ranks-")
            self._ranks = [_Rank(rank, Path(self._folder.name)) for rank in range(RANKS)]
        chosen = self._ranks[:world]
        for rank in chosen:
            rank.ask({"case": case, "world": world, "arguments": arguments})
        until = time.monotonic() + PATIENCE
        answers = []
        for rank in chosen:
            answers.append(rank.answer(until))
            if "error" in answers[-1]:
                until = min(until, time.monotonic() + 3.0)  # the others may have something to say about it
        failed = {rank: answer["error"] for rank, answer in enumerate(answers) if "error" in answer}
        if failed:
            texts = [f"rank {rank}: {text}\n{self._ranks[rank].said()}" for rank, text in failed.items()]
            self.stop()
            raise RanksFailed(f"{case}{arguments}\n" + "\n".join(texts))
        left = {rank: answer["threads"] for rank, answer in enumerate(answers) if answer["threads"]}
        assert not left, f"threads that outlive their pipeline: {left}"
        return [answer["answer"] for answer in answers]

    def stop(self):
        """Ends all processes."""
        for rank in self._ranks:
            rank.stop()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
