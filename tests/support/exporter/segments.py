"""The frames in an exporter's spool, read from the drawing in exporter/delivery/README.md and not with the exporter's own code."""

import glob
import os
import struct


def frames_of(spool):
    """The payloads of all segments of a spool directory, oldest first."""
    for path in sorted(glob.glob(os.path.join(spool, "*.seg"))):
        with open(path, "rb") as f:
            data = f.read()
        if not data.startswith(b"TGSPOOL\n"):
            raise AssertionError(f"{path} is not a segment")
        (node_length,) = struct.unpack_from("<H", data, 10)
        at = 48 + node_length + 4
        while at < len(data):
            length, _crc = struct.unpack_from("<II", data, at)
            yield data[at + 8 : at + 8 + length]
            at += 8 + length
