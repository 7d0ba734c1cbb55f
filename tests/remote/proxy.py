"""A cable between a client and a server that can be cut, or left hanging."""

import contextlib
import socket
import threading
import time


class Cable:
    """Forwards every connection to a server, until it is cut."""

    def __init__(self, target):
        self.target = target
        self.held = threading.Event()
        self.held.set()
        self._open = True
        self._pairs = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.wire = bytearray()
        self.keeps = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds):
        """Breaks all connections, and refuses new ones for a while."""
        self._open = False
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)
        self._open = True

    def hang(self, seconds):
        """Lets nothing through for a while, and tells nobody: a cable that was pulled, a laptop asleep."""
        self.held.clear()
        time.sleep(seconds)
        self.held.set()

    def close(self):
        self._listener.close()
        self.held.set()
        self.cut(0)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                near.close()
                continue
            try:
                far = socket.create_connection(self.target.rsplit(":", 1), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.held.wait()
                if self.keeps:
                    self.wire += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
