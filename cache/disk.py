"""The disk tier's files: one page's bytes under its key, written whole or not at all, believed only if its seal holds.

Owns a directory. Several processes may share it: a block appears by rename, so a reader sees all of it or nothing; who
removes a block under a reader makes a miss, never an error. Blocks of another model, layout or page size live in
another folder. Knows nothing about what the bytes mean or which blocks are worth keeping (`disk_map` does).

    <root>/secret                     32 bytes, mode 0600; keys the page hashes and the seals
    <root>/<namespace>/<k0k1>/<key>   header | payload        (hex names; .tmp while being written)
    header: magic 8 | namespace 16 | key 16 | payload length 8 | seal 16 (keyed BLAKE2b over the rest)

Every method may be called from several threads at once. Disk faults are not errors here: a write that fails returns
False, a read that fails is a miss; both are counted in `stats`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

MAGIC = b"tsdKV\x00\x01\n"
HEADER = struct.Struct("<8s16s16sQ16s")
STALE_S = 3600.0
SECRET_BYTES = 32

Buffer = bytes | bytearray | memoryview


class DiskStore:
    """Blocks of exactly `block_bytes` bytes in `root`, for caches described by `identity`.

    `identity` names all that the bytes depend on: weights, dtype, layout, page size. Raises OSError when the directory
    cannot be made or its secret cannot be read.
    """

    def __init__(self, root: Path, identity: bytes, block_bytes: int, *, durable: bool = False) -> None:
        self.root = root
        self.block_bytes = block_bytes
        self.durable = durable
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.secret = shared_secret(root / "secret")
        self.namespace = hashlib.blake2b(identity, digest_size=16, person=b"tsd kv names").digest()
        self.folder = root / self.namespace.hex()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.stats = {"reads": 0, "hits": 0, "rotten": 0, "writes": 0, "failed_writes": 0}
        self._serial = 0
        self._lock = threading.Lock()
        self._clean()

    def path(self, key: bytes) -> Path:
        """Where the block of a 16-byte key is."""
        name = key.hex()
        return self.folder / name[:2] / name

    def stored_keys(self) -> list[bytes]:
        """The keys of all blocks of this namespace, most recently used first. Reads no block."""
        found: list[tuple[float, bytes]] = []
        for folder in _scan(self.folder):
            for entry in _scan(Path(folder.path)):
                key = _key_of(entry.name)
                if key is not None:
                    try:
                        found.append((entry.stat().st_mtime, key))
                    except FileNotFoundError:
                        continue
        found.sort(reverse=True)
        return [key for _, key in found]

    def write(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """Stores a block made of `parts`, joined. False when the disk refuses; nothing half-written stays.

        Raises ValueError when the parts are not `block_bytes` long: our bug.
        """
        length = sum(memoryview(part).nbytes for part in parts)
        if length != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {length}")
        with self._lock:
            self._serial += 1
            serial = self._serial
            self.stats["writes"] += 1
        path = self.path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{serial}.tmp")
        header = HEADER.pack(MAGIC, self.namespace, key, length, self._seal(key, parts))
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                for part in (header, *parts):
                    _write_all(handle, memoryview(part).cast("B"))
                if self.durable:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)
        except OSError:
            with self._lock:
                self.stats["failed_writes"] += 1
            temporary.unlink(missing_ok=True)
            return False
        return True

    def read(self, key: bytes, into: bytearray | memoryview) -> bool:
        """Fills `into` (block_bytes long) with a block. False, its contents undefined, when there is no sound one.

        A block that is the wrong length or whose seal is broken is removed.
        """
        view = memoryview(into).cast("B")
        if view.nbytes != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, not {view.nbytes}")
        path = self.path(key)
        sound = False
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._count(hit=False, rotten=False)
            return False
        try:
            header = bytearray(HEADER.size)
            if _read_all(handle, memoryview(header)) and _read_all(handle, view) and not os.read(handle, 1):
                magic, namespace, stored, length, seal = HEADER.unpack(header)
                sound = (
                    magic == MAGIC
                    and namespace == self.namespace
                    and stored == key
                    and length == self.block_bytes
                    and secrets.compare_digest(seal, self._seal(key, (view,)))
                )
        except OSError:
            sound = False
        finally:
            os.close(handle)
        if sound:
            # Removed meanwhile, or a read-only disk: the bytes are good all the same.
            with contextlib.suppress(OSError):
                os.utime(path)
        else:
            self.discard((key,))
        self._count(hit=sound, rotten=not sound)
        return sound

    def discard(self, keys: Iterable[bytes]) -> None:
        """Removes blocks; those that are gone already are fine."""
        for key in keys:
            try:
                self.path(key).unlink(missing_ok=True)
            except OSError:
                continue

    def _count(self, *, hit: bool, rotten: bool) -> None:
        with self._lock:
            self.stats["reads"] += 1
            self.stats["hits"] += hit
            self.stats["rotten"] += rotten

    def _seal(self, key: bytes, parts: Sequence[Buffer]) -> bytes:
        mac = hashlib.blake2b(key=self.secret, digest_size=16, person=b"tsd kv seal")
        mac.update(self.namespace)
        mac.update(key)
        for part in parts:
            mac.update(part)
        return mac.digest()

    def _clean(self) -> None:
        """Removes what a process that died in the middle of a write left; a young one may still be at it."""
        now = time.time()
        for folder in _scan(self.folder):
            for entry in _scan(Path(folder.path)):
                if entry.name.endswith(".tmp"):
                    try:
                        if now - entry.stat().st_mtime > STALE_S or not _alive(entry.name):
                            os.unlink(entry.path)
                    except (FileNotFoundError, PermissionError):
                        continue


def shared_secret(path: Path) -> bytes:
    """The directory's secret: made once, by whichever process links its own in first. Raises OSError, ValueError."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, secrets.token_bytes(SECRET_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(own, path)
        except FileExistsError:
            pass  # Another process was first: its secret is the one.
        finally:
            own.unlink()
        found = path.read_bytes()
    if len(found) != SECRET_BYTES:
        raise ValueError(f"{path} holds {len(found)} bytes, not {SECRET_BYTES}: remove the cache directory")
    return found


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _key_of(name: str) -> bytes | None:
    """The key a file name stands for; None for temporaries and strangers."""
    if len(name) != 32:
        return None
    try:
        return bytes.fromhex(name)
    except ValueError:
        return None


def _alive(name: str) -> bool:
    """Whether the process that names a temporary file still runs."""
    parts = name.split(".")
    try:
        os.kill(int(parts[-3]), 0)
    except (ValueError, IndexError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _write_all(handle: int, view: memoryview) -> None:
    while view:
        view = view[os.write(handle, view) :]


def _read_all(handle: int, view: memoryview) -> bool:
    """Fills `view`; False at an early end of file."""
    while view:
        got = os.readv(handle, [view])
        if got == 0:
            return False
        view = view[got:]
    return True
