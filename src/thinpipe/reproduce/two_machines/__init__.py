"""MobileNetV2 between a client and a server over a thin link: bytes, bandwidth and time of a batch."""
