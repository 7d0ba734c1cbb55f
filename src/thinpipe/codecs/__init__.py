"""Codecs: tensor to bytes to tensor. Packed, self-describing, without state unless their text says so."""

from thinpipe.codecs.catalogue import CATALOGUE, DEFAULT, codec, decode
from thinpipe.codecs.codec import Codec
from thinpipe.codecs.compress import compress
from thinpipe.codecs.packet import Packet

__all__ = ["CATALOGUE", "DEFAULT", "Codec", "Packet", "codec", "compress", "decode"]
