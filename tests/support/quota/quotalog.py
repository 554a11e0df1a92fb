"""The log of quota decisions as whoever reads the database sees it: its chain, and events that a test writes into it by hand."""

import hashlib
import json
import struct

ZEROS = bytes(32)


def link(before, seq, at_ns, actor, event, outcome):
    """The hash of one event, by the words of aggregator/core/quota/book/decision_rows.h."""
    h = hashlib.sha256(before + struct.pack(">qq", seq, at_ns))
    for text in (actor, event, outcome):
        data = text.encode()
        h.update(struct.pack(">q", len(data)) + data)
    return h.digest()


def rows(stack):
    """[(seq, at_ns, actor, event, outcome, hash)], all of it."""
    found = stack.sql("SELECT seq, at_ns, actor, event, outcome, encode(hash, 'hex') FROM tollgate.quota_event ORDER BY seq")
    return [(int(r[0]), int(r[1]), r[2], r[3], r[4], bytes.fromhex(r[5])) for r in found]


def chain_faults(stack):
    """What is wrong with the chain; empty: nothing."""
    head, last, faults = ZEROS, 0, []
    at = 0
    for seq, at_ns, actor, event, outcome, digest in rows(stack):
        if seq != last + 1:
            faults.append(f"{seq} follows {last}")
        if at_ns < at:
            faults.append(f"{seq} goes back in time")
        if link(head, seq, at_ns, actor, event, outcome) != digest:
            faults.append(f"{seq} has another hash")
        head, last, at = digest, seq, at_ns
    book = stack.sql("SELECT seq, encode(head, 'hex') FROM tollgate.quota_book")[0]
    if book != [str(last), head.hex()]:
        faults.append(f"the book is at {book}, the log at {last}")
    return faults


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def append(stack, event, actor="test", outcome='{"verdicts":[],"notices":[]}'):
    """As another replica would: under the lock of the book."""
    text = json.dumps(event)
    seq, at_ns, head = stack.sql("SELECT seq, at_ns, encode(head, 'hex') FROM tollgate.quota_book")[0]
    seq, at_ns = int(seq) + 1, max(int(at_ns), int(stack.sql("SELECT (extract(epoch FROM now()) * 1000000)::bigint * 1000")[0][0]))
    digest = link(bytes.fromhex(head), seq, at_ns, actor, text, outcome).hex()
    stack.sql(
        "BEGIN; SELECT FROM tollgate.quota_book FOR UPDATE; INSERT INTO tollgate.quota_event VALUES "
        f"({seq}, {at_ns}, {quoted(actor)}, {quoted(text)}, {quoted(outcome)}, decode('{digest}', 'hex')); "
        f"UPDATE tollgate.quota_book SET seq = {seq}, at_ns = {at_ns}, head = decode('{digest}', 'hex') WHERE seq = {seq - 1}; COMMIT"
    )
    return seq
