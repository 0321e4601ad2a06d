"""The disk store: whole blocks or none, sealed, shared, tolerant of every disk fault."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tsd.cache.disk import HEADER, DiskStore

KEY = bytes(range(16))
SIZE = 1000


def block(number: int) -> bytes:
    return bytes((number * 7 + i) % 256 for i in range(SIZE))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "kv", b"model a", SIZE)


def read(store: DiskStore, key: bytes = KEY) -> bytes | None:
    into = bytearray(SIZE)
    return bytes(into) if store.read(key, into) else None


def test_a_block_comes_back_as_written(store: DiskStore) -> None:
    assert read(store) is None
    assert store.write(KEY, [block(1)[:300], memoryview(block(1))[300:]])
    assert read(store) == block(1)
    assert store.stored_keys() == [KEY]
    store.discard([KEY, b"x" * 16])
    assert read(store) is None and store.stored_keys() == []


def test_every_flipped_bit_is_a_miss_and_removes_the_block(store: DiskStore) -> None:
    store.write(KEY, [block(1)])
    whole = store.path(KEY).read_bytes()
    for at in range(0, len(whole), 37):
        for bit in (1, 128):
            broken = bytearray(whole)
            broken[at] ^= bit
            store.path(KEY).write_bytes(broken)
            assert read(store) is None
            assert not store.path(KEY).exists()
    store.path(KEY).write_bytes(whole)
    assert read(store) == block(1)


@pytest.mark.parametrize("length", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + SIZE - 1, HEADER.size + SIZE + 1])
def test_a_truncated_or_overlong_block_is_a_miss(store: DiskStore, length: int) -> None:
    store.write(KEY, [block(1)])
    whole = store.path(KEY).read_bytes() + b"\x00"
    store.path(KEY).write_bytes(whole[:length])
    assert read(store) is None


def test_another_model_or_key_never_matches(store: DiskStore, tmp_path: Path) -> None:
    store.write(KEY, [block(1)])
    other = DiskStore(tmp_path / "kv", b"model b", SIZE)
    assert other.secret == store.secret
    assert read(other) is None and other.stored_keys() == []
    # Somebody copies the file under another key, and into the other model's folder.
    elsewhere = b"\xff" * 16
    for target, name in ((store, elsewhere), (other, KEY)):
        target.path(name).parent.mkdir(parents=True, exist_ok=True)
        target.path(name).write_bytes(store.path(KEY).read_bytes())
        assert read(target, name) is None
    assert read(store) == block(1)


def test_a_full_disk_refuses_the_write_and_leaves_nothing(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(KEY, [block(1)])
    real = os.write
    written = 0

    def full(handle: int, data: memoryview) -> int:
        nonlocal written
        if written > 400:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(handle, bytes(data[:200]))
        written += done
        return done

    monkeypatch.setattr(os, "write", full)
    assert not store.write(KEY, [block(2)])
    assert not store.write(b"q" * 16, [block(2)])
    monkeypatch.undo()
    assert read(store) == block(1), "the old block stays"
    assert [path.suffix for path in store.folder.rglob("*") if path.is_file()] == [""]
    assert store.stats["failed_writes"] == 2


def test_an_unreadable_directory_is_a_miss_not_an_error(store: DiskStore) -> None:
    store.write(KEY, [block(1)])
    path = store.path(KEY)
    path.unlink()
    path.mkdir()
    assert read(store) is None
    assert not store.write(KEY, [block(1)])


def test_a_crash_in_the_middle_of_a_write_leaves_no_block(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tsd.cache.disk import DiskStore\n"
        "store = DiskStore(Path(sys.argv[1]), b'model a', 1000)\n"
        "real = os.write\n"
        "def torn(handle, data):\n"
        "    real(handle, bytes(data[:40])); os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.write = torn\n"
        "store.write(bytes(range(16)), [bytes(1000)])\n"
    )
    root = tmp_path / "kv"
    DiskStore(root, b"model a", SIZE)
    done = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert done.returncode == -9
    assert len(list(root.rglob("*.tmp"))) == 1
    store = DiskStore(root, b"model a", SIZE)
    assert read(store) is None
    assert list(root.rglob("*.tmp")) == [], "the dead writer's file is cleaned up"


def test_a_living_writer_is_left_alone(store: DiskStore) -> None:
    path = store.path(KEY)
    path.parent.mkdir()
    mine = path.with_name(f"{path.name}.{os.getpid()}.1.tmp")
    mine.write_bytes(b"half")
    DiskStore(store.root, b"model a", SIZE)
    assert mine.exists()
    old = time.time() - 7200
    os.utime(mine, (old, old))
    DiskStore(store.root, b"model a", SIZE)
    assert not mine.exists()


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    stores = [DiskStore(root, b"model a", SIZE) for _ in range(2)]
    assert stores[0].secret == stores[1].secret
    faults: list[str] = []

    def work(store: DiskStore, turn: int) -> None:
        for i in range(300):
            key = bytes([i % 5]) * 16
            if (i + turn) % 3 == 0:
                store.write(key, [block(i % 5)])
            elif (i + turn) % 7 == 0:
                store.discard([key])
            else:
                found = read(store, key)
                if found is not None and found != block(i % 5):
                    faults.append(f"key {i % 5} gave other bytes")

    threads = [threading.Thread(target=work, args=(stores[n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert stores[0].stats["rotten"] == stores[1].stats["rotten"] == 0
    assert not list(root.rglob("*.tmp"))


def test_recently_read_keys_come_first(store: DiskStore) -> None:
    for number in range(3):
        store.write(bytes([number]) * 16, [block(number)])
        os.utime(store.path(bytes([number]) * 16), (1000 + number, 1000 + number))
    assert read(store, bytes([0]) * 16) is not None
    assert [key[0] for key in store.stored_keys()] == [0, 2, 1]
    (store.folder / "00" / "stranger").write_text("hello")
    assert len(store.stored_keys()) == 3


def test_the_secret_is_private_and_a_broken_one_is_refused(store: DiskStore) -> None:
    assert (store.root / "secret").stat().st_mode & 0o777 == 0o600
    (store.root / "secret").write_bytes(b"short")
    with pytest.raises(ValueError, match="remove the cache directory"):
        DiskStore(store.root, b"model a", SIZE)
