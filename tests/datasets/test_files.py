"""Where files are looked for, and what is said when they are nowhere."""

import gzip

import pytest

from sordina.datasets.data import File, find, obtain, open_text
from sordina.errors import DataNotFound

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SORDINA_DATA", str(tmp_path / "own"))
    monkeypatch.setattr("sys.platform", "linux")
    own, cache = tmp_path / "own", tmp_path / "cache" / "sordina" / "data"
    own.mkdir(), cache.mkdir(parents=True)
    return own, cache


def test_the_users_folder_comes_before_the_cache(folders):
    own, cache = folders
    (cache / "a.txt").write_text("cache")
    assert find("a.txt") == cache / "a.txt"
    (own / "a.txt").write_text("own")
    assert obtain(File("a.txt", DIGEST)) == own / "a.txt"


def test_a_preferred_file_in_the_cache_comes_before_an_alternative_in_the_users_folder(folders):
    own, cache = folders
    (own / "part.csv").write_text("part")
    (cache / "all.csv").write_text("all")
    assert find("all.csv", "part.csv") == cache / "all.csv"


@pytest.mark.parametrize(("asked", "there"), [("a.txt", "a.txt.gz"), ("a.txt.gz", "a.txt")])
def test_compressed_or_not_is_all_the_same(folders, asked, there):
    content = gzip.compress("föhn\n".encode()) if there.endswith(".gz") else "föhn\n".encode()
    (folders[0] / there).write_bytes(content)
    with open_text(find(asked)) as text:
        assert text.read() == "föhn\n"


def test_a_missing_file_is_one_clear_sentence(folders, monkeypatch):
    with pytest.raises(DataNotFound, match=r"no x/y\.csv: it is not in SORDINA_DATA \(.*own\).* folder that holds x/y"):
        obtain(File("x/y.csv", DIGEST))
    monkeypatch.delenv("SORDINA_DATA")
    with pytest.raises(DataNotFound, match="SORDINA_DATA is not set") as refusal:
        obtain(File("x/y.csv", DIGEST))
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2
