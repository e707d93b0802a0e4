"""The vendored modules are the published files, and each has its licence beside it."""

import hashlib
from pathlib import Path

import marft

VENDOR = Path(marft.__file__).parent / "view" / "page" / "vendor"
PUBLISHED = {
    "htm-preact.module.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "htm.LICENSE.txt": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "preact.LICENSE.txt": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def test_the_files_are_those_that_were_published():
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.iterdir()
        if file.name != "README.md"
    }
    assert found == PUBLISHED


def test_the_readme_names_each_file_with_its_licence():
    told = (VENDOR / "README.md").read_text(encoding="utf8")
    assert [name for name in PUBLISHED if f"`{name}`" not in told] == []
