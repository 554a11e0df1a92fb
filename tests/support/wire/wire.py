"""A second decoder of the wire format, written from common/wire/WIRE.md alone: what the document says is what the programs do."""

import gzip

WIRE_VERSION, OLDEST_VERSION = 4, 1
MAX_TEXT, MAX_LABELS = 512, 6111
VARINT, ZIGZAG, TEXT, LABELS, BOOT_ID = "varint", "zigzag", "text", "labels", "boot_id"

HEAD = (("kind", VARINT), ("flags", VARINT), ("node", TEXT), ("boot_id", BOOT_ID), ("epoch", VARINT), ("seq", VARINT),
        ("last_seq", VARINT), ("exporter_version", TEXT), ("from_ns", ZIGZAG), ("to_ns", ZIGZAG))
DEVICE = (("id", VARINT), ("gpu", VARINT), ("uuid", TEXT), ("model", TEXT), ("profile", TEXT), ("gi", ZIGZAG), ("ci", ZIGZAG),
          ("created_ns", ZIGZAG), ("units", ZIGZAG), ("memory_bytes", ZIGZAG), ("index", ZIGZAG))
HOLDER = (("id", VARINT), ("kind", VARINT), ("ns", TEXT), ("pod", TEXT), ("pod_uid", TEXT), ("container", TEXT),
          ("slurm_job", TEXT), ("slurm_account", TEXT), ("user", TEXT), ("uid", ZIGZAG), ("group", TEXT), ("labels", LABELS))
SINCE_VERSION_2 = ("group", "labels")
COLUMNS = ("device", "holder", "state", "sharing", "method", "units", "start_ns", "duration_ns", "held_ns", "used_ns",
           "unmeasured_ns", "over_ns", "memory_byte_ms", "energy_mj", "ticks", "peak_memory_bytes", "sm_active_ns", "sm_measured_ns")
SINCE_VERSION_3 = ("peak_memory_bytes", "sm_active_ns", "sm_measured_ns")


class Unsound(ValueError):
    """Bytes that are not a frame or a batch."""


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if n > len(self.data) - self.at:
            raise Unsound(f"byte {self.at}: {n} bytes wanted, {len(self.data) - self.at} left")
        self.at += n
        return self.data[self.at - n:self.at]

    def varint(self):
        value = 0
        for i in range(10):
            byte = self.take(1)[0]
            value |= (byte & 0x7f) << 7 * i
            if byte < 0x80:
                if value >> 64 or (byte == 0 and i > 0):
                    break
                return value
        raise Unsound(f"byte {self.at}: not a varint")

    def zigzag(self):
        value = self.varint()
        return -(value + 1 >> 1) if value & 1 else value >> 1

    def text(self, most=MAX_TEXT):
        length = self.varint()
        if length > most:
            raise Unsound(f"byte {self.at}: a text of {length} bytes")
        return self.take(length).decode("utf-8")

    def labels(self):
        return self.text(MAX_LABELS)

    def boot_id(self):
        return self.take(16)

    def fields(self, layout):
        return {name: getattr(self, form)() for name, form in layout}

    def column(self, count, sums=True):
        inner, value, values = Reader(self.take(self.varint())), 0, []
        for _ in range(count):
            value = inner.zigzag() + (value if sums else 0)
            values.append(value)
        inner.end()
        return values

    def end(self):
        if self.at != len(self.data):
            raise Unsound(f"{len(self.data) - self.at} bytes too many")


def decode(body):
    """The batch as a dictionary: the head's fields, and lists devices, holders, records."""
    r = Reader(body)
    if r.take(3) != b"TGW":
        raise Unsound("not a batch")
    version = r.take(1)[0]
    if not OLDEST_VERSION <= version <= WIRE_VERSION:
        raise Unsound(f"version {version}")
    holder = [f for f in HOLDER if version >= 2 or f[0] not in SINCE_VERSION_2]
    batch = {"version": version} | r.fields(HEAD)
    batch["devices"] = [r.fields(DEVICE) for _ in range(r.varint())]
    batch["holders"] = [dict.fromkeys(SINCE_VERSION_2, "") | r.fields(holder) for _ in range(r.varint())]
    count = r.varint()
    by_peak = ("memory_byte_ms",) if version >= 4 else ()
    columns = [[0] * count if version < 3 and name in SINCE_VERSION_3 else r.column(count, name not in by_peak) for name in COLUMNS]
    batch["records"] = [dict(zip(COLUMNS, row)) for row in zip(*columns)]
    for record in batch["records"] if by_peak else ():
        foretold = record["peak_memory_bytes"] * record["duration_ns"] // 1_000_000
        record["memory_byte_ms"] += foretold if record["peak_memory_bytes"] > 0 and record["duration_ns"] > 0 and foretold < 1 << 63 else 0
    r.end()
    return batch


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frames(data):
    """The payloads of a spool segment or of the body of a push."""
    r, payloads = Reader(data), []
    while r.at < len(data):
        length, crc = (int.from_bytes(r.take(4), "little") for _ in range(2))
        payload = r.take(length)
        if length == 0 or crc32c(payload) != crc:
            raise Unsound(f"byte {r.at}: a damaged frame")
        payloads.append(payload)
    return payloads


def batches(data):
    return [decode(gzip.decompress(payload)) for payload in frames(data)]
