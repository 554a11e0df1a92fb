"""A wall clock that a test sets: that of the processes which are started with its environment, and of no other.

    with Clock() as c, Stack(clock=c) as s:    # PostgreSQL's
        c.set(3600)                            # an hour ahead of the machine's, from now on
"""

import contextlib
import os
import shutil
import struct
import tempfile

from tests.support.daemons import pg

NS = 1_000_000_000


class Clock(contextlib.AbstractContextManager):
    def __enter__(self):
        build = os.environ.get("TOLLGATE_BUILD_DIR") or os.path.join(os.path.dirname(__file__), "..", "..", "..", "build", "release")
        self.dir = tempfile.mkdtemp(prefix="tollgate-clock-", dir=pg.base())
        os.chmod(self.dir, 0o755)  # the server is another user, and may not see where the build is
        library = shutil.copy(os.path.join(build, "sim", "libclockstep.so"), self.dir)
        self.path = os.path.join(self.dir, "offset")
        with open(self.path, "wb") as f:
            f.write(bytes(8))
        for path in (library, self.path):
            os.chmod(path, 0o755)
        self.env = {"LD_PRELOAD": library, "TOLLGATE_CLOCKSTEP": self.path}
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.dir, ignore_errors=True)

    def set(self, seconds):
        """Ahead of the machine's by so much; the eight bytes are written at once."""
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, struct.pack("=q", int(seconds * NS)), 0)
        finally:
            os.close(fd)
