"""One process holds a run's folder; what is in it is whole, its own, and says what it is."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sordina import private_files
from sordina.errors import InvalidInput
from sordina.journal import BLOCK, Journal, pack
from sordina.privacy_claim import PrivacyClaim
from sordina.private_files import FolderInUse
from sordina.run_folder import (
    CHECKPOINT,
    JOURNAL,
    LOCK,
    MODEL,
    MODEL_HASH,
    PRIVACY,
    RUN,
    FolderState,
    HeldReservation,
    RunFolder,
    read_claim,
    state_of,
)

CLAIM = PrivacyClaim(epsilon=8.0, delta=1e-5, private=True)

SETTINGS = {"epsilon": 8.0, "steps": 100}
OTHER_PROCESS = """
import sys
from sordina.errors import SordinaError
from sordina.run_folder import RunFolder
try:
    RunFolder.begin(sys.argv[1], "train", {"epsilon": 8.0, "steps": 100}, resume=True)
except SordinaError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def begin(path, settings=SETTINGS, **options):
    return RunFolder.begin(path, "train", settings, **options)


def another_process(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(path)], capture_output=True, text=True, timeout=60)


def test_one_process_holds_a_folder(tmp_path):
    path = tmp_path / "run"
    with begin(path):
        refused = another_process(path)
        assert refused.returncode == 2
        assert f"in use by process {os.getpid()}" in refused.stdout
        with pytest.raises(FolderInUse):
            begin(path, resume=True)
    assert another_process(path).returncode == 0


def test_the_lock_dies_with_its_process(tmp_path):
    path = tmp_path / "run"
    begin(path).close()
    holder = OTHER_PROCESS.replace("try:", "import os\ntry:").replace("except", "    os.abort()\nexcept")
    holder = holder.replace("    RunFolder", "    folder = RunFolder")
    died = subprocess.run([sys.executable, "-c", holder, str(path)], capture_output=True, text=True, timeout=60)
    assert died.returncode < 0, died.stderr
    begin(path, resume=True).close()


def test_only_the_owner_may_read(tmp_path):
    path = tmp_path / "deep" / "run"
    with begin(path) as folder:
        folder.write(CHECKPOINT, b"state")
        folder.journal.claim(1, 100)
        folder.finish(b"weights", CLAIM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_settings_are_kept_before_anything_is_drawn(tmp_path):
    path = tmp_path / "run"
    begin(path).close()
    with pytest.raises(InvalidInput, match=r"epsilon was 8.0, now 0.5"):
        begin(path, {**SETTINGS, "epsilon": 0.5}, resume=True)
    with pytest.raises(InvalidInput, match="holds a run already"):
        begin(path)
    with pytest.raises(InvalidInput, match="of `train`, not of `tune`"):
        RunFolder.begin(path, "tune", SETTINGS, resume=True)
    begin(path, resume=True).close()


def test_a_start_killed_before_the_journal_is_no_run(tmp_path):
    path = tmp_path / "run"
    begin(path).close()
    record = json.loads((path / RUN).read_text())
    (path / RUN).write_text(json.dumps(record | {"state": "starting"}))
    (path / JOURNAL).unlink()
    begin(path, {"other": 1}).close()
    assert state_of(path).state is FolderState.OPEN


def test_a_reservation_is_known_by_its_ledger(tmp_path):
    with begin(tmp_path / "run") as folder:
        assert folder.reservation is None
        folder.keep_reservation(HeldReservation("a" * 64, "patients", 2, "here.db"))
        folder.keep_reservation(HeldReservation("a" * 64, "patients", 2, "moved.db"))
        for stranger in (HeldReservation("b" * 64, "patients", 2), HeldReservation("a" * 64, "staff", 2)):
            with pytest.raises(InvalidInput, match="its own ledger"):
                folder.keep_reservation(stranger)


def test_the_end_is_one_sequence_that_may_be_repeated(tmp_path):
    path, settled = tmp_path / "run", []

    def killed() -> None:
        raise KeyboardInterrupt

    with begin(path) as folder, pytest.raises(KeyboardInterrupt):
        folder.finish(b"weights", CLAIM, killed)
    assert state_of(path).state is FolderState.OPEN
    with begin(path, resume=True) as folder:
        folder.finish(b"weights", CLAIM, lambda: settled.append(1))
        folder.finish(b"others", PrivacyClaim(epsilon=1.0, private=True), lambda: settled.append(2))
    assert settled == [1]
    assert state_of(path).state is FolderState.FINISHED
    assert read_claim(path).epsilon == 8.0
    with begin(path, resume=True) as folder:
        assert folder.finished


def test_a_claim_about_another_model_is_refused(tmp_path):
    with begin(tmp_path) as folder:
        folder.finish(b"weights", CLAIM)
    (tmp_path / MODEL).write_bytes(b"without privacy")
    with pytest.raises(InvalidInput, match="speaks of another model"):
        read_claim(tmp_path)


def test_old_folders_can_be_read_but_not_resumed(tmp_path):
    (tmp_path / PRIVACY).write_text('{"epsilon": 3.0}')
    (tmp_path / MODEL).write_bytes(b"weights")
    assert state_of(tmp_path).state is FolderState.FINISHED
    assert read_claim(tmp_path).epsilon == 3.0
    (tmp_path / PRIVACY).unlink()
    (tmp_path / JOURNAL).write_text('{"claimed": 25}\n')
    assert state_of(tmp_path).state is FolderState.BROKEN
    for resume in (False, True):
        with pytest.raises(InvalidInput, match="cannot be resumed"):
            begin(tmp_path, resume=resume)


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": 2}', "", "\0" * 50, "[" * 100_000])
def test_a_damaged_record_is_told_in_one_line(tmp_path, damage):
    begin(tmp_path).close()
    (tmp_path / RUN).write_text(damage)
    with pytest.raises(InvalidInput, match="cannot be resumed") as refused:
        begin(tmp_path, resume=True)
    assert "\n" not in str(refused.value)


def test_changed_settings_on_the_disk_are_damage(tmp_path):
    begin(tmp_path).close()
    (tmp_path / RUN).write_text((tmp_path / RUN).read_text().replace("8.0", "0.5"))
    with pytest.raises(InvalidInput, match="cannot be resumed"):
        begin(tmp_path, {**SETTINGS, "epsilon": 0.5}, resume=True)


def test_a_lost_journal_cannot_be_resumed(tmp_path):
    begin(tmp_path).close()
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(InvalidInput, match="gone"):
        begin(tmp_path, resume=True)


@pytest.mark.parametrize("name", [RUN, JOURNAL, LOCK, MODEL])
@pytest.mark.parametrize("trap", ["link", "pipe", "folder"])
def test_what_is_in_the_way_is_refused_and_never_waited_for(tmp_path, name, trap):
    path, victim = tmp_path / "run", tmp_path / "victim"
    path.mkdir()
    victim.write_bytes(b"mine")
    if trap == "link":
        (path / name).symlink_to(victim)
    elif trap == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).mkdir()
    with pytest.raises(InvalidInput), begin(path) as folder:
        folder.finish(b"weights", PrivacyClaim())
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize("bad", ["file", "file/below", "nul\0byte", "x" * 5000])
def test_a_folder_that_cannot_be_is_refused(tmp_path, bad):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput):
        begin(tmp_path / bad)


def test_a_torn_record_does_not_hide_the_next(tmp_path):
    path = tmp_path / JOURNAL
    journal = Journal.open(path)
    journal.claim(1, 100)
    with path.open("ab") as file:
        file.write(b'{"claim')
    torn = Journal.open(path)
    assert (torn.claimed, torn.unreadable) == (2 * BLOCK, 1)
    torn.claim(2 * BLOCK + 1, 100)
    assert Journal.open(path).claimed >= 3 * BLOCK


@pytest.mark.parametrize("cut", range(1, len(pack({"claimed": 2 * BLOCK}))))
def test_a_record_torn_anywhere_counts_at_least_as_much(tmp_path, cut):
    path = tmp_path / JOURNAL
    path.write_bytes(pack({"claimed": BLOCK}) + pack({"claimed": 2 * BLOCK})[:cut])
    assert Journal.open(path).claimed >= 2 * BLOCK
    path.write_bytes(pack({"claimed": BLOCK})[cut:] + pack({"claimed": 2 * BLOCK}))
    assert Journal.open(path).claimed >= 2 * BLOCK


@pytest.mark.parametrize("position", range(0, 90, 3))
def test_a_flipped_byte_never_lowers_the_claim(tmp_path, position):
    path = tmp_path / JOURNAL
    whole = bytearray(b"".join(pack({"claimed": n * BLOCK}) for n in (1, 2, 3)))
    whole[position] ^= 0x15
    path.write_bytes(whole)
    assert Journal.open(path).claimed >= 3 * BLOCK


def test_a_full_disk_is_told_in_one_line_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    private_files.write(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private_files.os, "write", full)
    with pytest.raises(InvalidInput, match="No space left on device"):
        private_files.write(path, b"new")
    with pytest.raises(InvalidInput, match="No space left on device"):
        private_files.write(path, lambda file: file.write(b"new" * 1000))
    monkeypatch.undo()
    assert path.read_bytes() == b"old"


def test_the_model_is_named_by_its_hash(tmp_path):
    with begin(tmp_path) as folder:
        folder.finish(lambda file: file.write(b"weights"), CLAIM)
    assert json.loads((tmp_path / PRIVACY).read_text())[MODEL_HASH] == private_files.sha256(tmp_path / MODEL)
