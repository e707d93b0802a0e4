"""rows: every kind of file, and one sentence with file and line for each that cannot be used."""

import gzip
import json

import pytest

from marft.environments.rows import Columns, Row, Source, file_records, rows
from marft.types import MarftError

ENTRIES = [{"q": "1+1?", "a": 2, "name": "x"}, {"q": "say “hi”,\ntwice", "a": "hi hi", "name": "y"}]
COLUMNS = Columns("q", "a", id="name")


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file


def jsonl(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def read(path, columns=COLUMNS):
    return [(row.question, row.answer, row.id) for row in rows(file_records(path), path, columns)]


EXPECTED = [("1+1?", "2", "x"), ("say “hi”,\ntwice", "hi hi", "y")]
CSV = 'q,a,name\n1+1?,2,x\n"say “hi”,\ntwice",hi hi,y\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl(ENTRIES)),
        ("a.jsonl", "\ufeff" + jsonl(ENTRIES).replace("\n", "\r\n\n")),
        ("a.jsonl.gz", gzip.compress(jsonl(ENTRIES).encode())),
        ("a.json", json.dumps(ENTRIES, indent=2)),
        ("a.json", jsonl(ENTRIES)),  # many files of JSON lines are called .json
        ("a.csv", CSV),
    ],
)
def test_files(write, name, content):
    assert read(write(name, content)) == EXPECTED


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{**entry, "a": str(entry["a"])} for entry in ENTRIES]), path)
    assert read(path) == EXPECTED


def test_what_a_row_holds(write):
    path = write("a.jsonl", jsonl([{"q": "?", "a": [1, "2"], "level": 5}]))
    columns = Columns("q", "a", kind="level", lists=True)
    assert rows(file_records(path), path, columns) == [Row(1, f"{path}, line 1", "?", "1, 2", "", "5")]


LINES = [{"q": f"q{i}", "a": "1", "name": str(i)} for i in range(20)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.jsonl",
            jsonl(LINES[:16]) + '{"q": "x" "a": 1}\n',
            "a.jsonl, line 17: is not JSON: Expecting ',' delimiter",
        ),
        ("a.json", '[\n{"q": "x"},\n{"q": }]', "a.json, line 3: is not JSON: Expecting value at character 7"),
        ("a.json", "[]", "a.json: holds no rows"),
        ("a.jsonl", "", "a.jsonl: holds no rows"),
        ("a.csv", "q,a,name\n", "a.csv: holds no rows"),
        ("a.jsonl", jsonl([*LINES[:4], LINES[1]]), "a.jsonl, line 5: the name '1' is also that of .*a.jsonl, line 2"),
        ("a.jsonl", jsonl([{"q": "x", "a": 1}]), "line 1: has no column 'name'; its columns are: q, a"),
        ("a.jsonl", jsonl([{"q": 1, "a": 1, "name": 1}]), "line 1: the column 'q' must hold a text; it holds 1"),
        ("a.jsonl", jsonl([{"q": "x", "a": [1], "name": 1}]), r"the column 'a' must hold a text or a number; it holds"),
        ("a.jsonl", jsonl([{"q": "x", "a": True, "name": 1}]), "the column 'a' must hold a text or a number"),
        ("a.jsonl", jsonl([{"q": "x", "a": 1, "name": ""}]), "the column 'name' must hold a text or a number"),
        ("a.jsonl", '["x"]', "a.jsonl, line 1: is not a mapping of columns"),
        ("a.json", '[{"q": "x", "a": 1, "name": 1}, 2]', "a.json, entry 2: is not a mapping of columns"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1: is not JSON: nested too deeply"),
        ("a.csv", "q,a,name\nx,1\n", "a.csv, line 2: has another number of columns"),
        ("a.csv", 'q,a,name\nx,1,2\n"y,1,2\n', "a.csv, line 3: is not CSV: unexpected end of data"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl: cannot be read: 'utf-8' codec can't decode"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz: cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b"x" * 100)[:-9], "a.jsonl.gz: cannot be read: "),
        ("a.parquet", b"no parquet", "a.parquet: cannot be read: "),
    ],
)
def test_files_that_cannot_be_used(write, name, content, says):
    with pytest.raises(MarftError, match=says):
        read(write(name, content))


@pytest.mark.parametrize("name", ["none.jsonl", "none.json", "none.csv", "none.parquet"])
def test_files_that_are_not_there(name):
    with pytest.raises(MarftError, match=rf"{name}: there is no such file \(looked in /"):
        read(name)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(MarftError, match=r"cannot be read: .*Is a directory"):
        read(str(tmp_path))


def test_the_splits_of_a_source(write):
    one, two = write("a.jsonl", jsonl(LINES[:10])), write("b.jsonl", jsonl(LINES[10:]))

    def sizes(**keys):
        return tuple(map(len, Source(**keys).rows(COLUMNS)))

    assert sizes(path=one, heldout_path=two) == (10, 10)
    assert sizes(path=one, heldout_share=0.3) == (7, 3)
    assert sizes(heldout_path=two) == (0, 10)
