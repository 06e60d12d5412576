"""Texts that the ds_config reader takes, and the place that each error names."""

from __future__ import annotations

import base64
import copy
import json

import pytest

from ballast.ds_config.errors import DsConfigError
from ballast.ds_config.source import load
from ballast.ds_config.syntax import DEPTH_MAX, parse

FREE = """# a comment
{
  "a": 1, // another
  /* and
     one more */ "b": [1, 2,],
  "c": {"d": "# no comment", "e": 5e8,},
}
"""


def test_comments_and_commas_before_brackets_are_read():
    values, places = parse(FREE, "f")
    assert values == {"a": 1, "b": [1, 2], "c": {"d": "# no comment", "e": 5e8}}
    assert places["c", "e"] == (6, 30)


def test_what_json_reads_is_read_alike():
    value = {"t": True, "n": None, "s": 'a"\\\u20ac\U0001f600', "l": [-1, 0.5, 1e-8, []], "o": {}}
    assert parse(json.dumps(value), "f")[0] == value
    assert parse(json.dumps(value, indent=3, ensure_ascii=False), "f")[0] == value


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "the text is empty"),
        ("# only a comment", "1:17", "the text is empty"),
        ("[1]", "1:1", "an object is wanted"),
        ("{", "1:2", "a name in double quotes is wanted, not the end of the text"),
        ('{"a": 1', "1:8", "the text ends before its }"),
        ('{"a": 1\n "b": 2}', "1:8", "a comma is missing"),
        ('{"a": [1 2]}', "1:9", "a comma is missing before '2'"),
        ("{a: 1}", "1:2", "a name in double quotes is wanted, not 'a'"),
        ('{"a" 1}', "1:6", "a colon is wanted after 'a'"),
        ('{"a": yes}', "1:7", "a value is wanted, not 'yes'"),
        ('{"a": NaN}', "1:7", "a value is wanted, not 'NaN'"),
        ('{"a": 01}', "1:7", "a value is wanted, not '01'"),
        ('{"a": 1e999}', "1:7", "1e999 is larger than any double"),
        ('{"a": ' + "9" * 5000 + "}", "1:7", "at most 400 characters"),
        ('{"a": "b\n"}', "1:7", "this double quote is not closed"),
        ('{"a": "\\q"}', "1:7", "unknown escape"),
        ('{"a": 1}\n{', "2:1", "nothing may follow"),
        ('{"a": 1 /* never closed', "1:9", "this comment has no */"),
        ('{"a": 1,\n "b": 2,\n "a": 3}', "3:2", "'a' stands twice, first at line 1"),
        ('{"x": {"a": 1, "a": 1}}', "1:16", "'a' stands twice"),
        ('{"a":' * 80 + "1" + "}" * 80, "1:326", f"more than {DEPTH_MAX} levels"),
    ],
)
def test_an_error_names_its_place(text, place, words):
    with pytest.raises(DsConfigError) as caught:
        parse(text, "f.json")
    assert caught.value.message.startswith(f"f.json:{place}: ")
    assert words in caught.value.message


def test_a_text_that_is_cut_anywhere_gives_an_error_or_a_value():
    for end in range(len(FREE)):
        try:
            parse(FREE[:end], "f")
        except DsConfigError:
            continue
        assert FREE[end:].strip() == ""


def test_a_file_a_dict_and_base64_are_read_alike(tmp_path):
    file = tmp_path / "ds.json"
    file.write_bytes(b"\xef\xbb\xbf" + FREE.encode())
    coded = base64.urlsafe_b64encode(FREE.encode()).decode()
    values = parse(FREE, "f")[0]
    for config in (file, str(file), coded, values):
        assert load(config).values == values


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("no-such-file.json", "is no file, and no base64 text either"),
        ("a" * 5000, "is no file"),
        ("a\0b", "is no file"),
        (7, "a path, a dict or base64 text is wanted, not a int"),
        (None, "a path, a dict or base64 text is wanted"),
        ({1: 2}, "the name 1 is no text"),
        ({"a": {None: 2}}, "the name None is no text"),
    ],
)
def test_what_is_no_configuration_is_refused(config, words):
    with pytest.raises(DsConfigError, match=words.replace("(", "\\(")):
        load(config)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DsConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(DsConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b'{\n "a": "\xff"}')
    with pytest.raises(DsConfigError, match="bytes.json:2:8: this byte is not UTF-8"):
        load(tmp_path / "bytes.json")
    (tmp_path / "large.json").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(DsConfigError, match="more than 4194304 bytes"):
        load(tmp_path / "large.json")


def test_a_dict_that_holds_itself_is_refused():
    config: dict = {}
    config["a"] = config
    with pytest.raises(DsConfigError, match="levels of nesting"):
        load(config)


def test_the_error_can_be_copied_to_another_process():
    error = DsConfigError("f", 2, 3, "text")
    again = copy.copy(error)  # as a pickle does
    assert (again.message, again.line, again.column) == ("f:2:3: text", 2, 3)
