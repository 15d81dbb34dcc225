"""The descent that readers of config files and of bodies share: where they differ is said by each of them."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.format.tables import config_json
from rmq_store.format.tables.config_json import ConfigJsonError, Verbatim
from rmq_store.format.tables.fastjson import DEPTH_MAX
from rmq_store.protocol.bodies import java_json
from rmq_store.protocol.bodies.java_json import ObjectKey
from rmq_store.protocol.errors import RemotingCommandError

SAME = ('{"a":{0:33,-1:"b"},"c":[1.5,true,null,"\\u00e9\\n"]}', '{"a":1,"a":2}', '{"a":[],"b":{}}', " {\t1 : 2 }\n")
NEITHER = (
    '{"a"}', "{1:}", "{,}", "{1:2,}", '{"a":01}', '{"a":1.}', '{"a":.5}', '{"a":NaN}', '{"a":"\\x"}', '{"a":"\x01"}',
    '{"a":tru}', '{"a":1}}', '{"a":1', "{[1]:1}", "{1.5:1}", '{"a":' + "[" * DEPTH_MAX + "]" * DEPTH_MAX + "}",
)  # fmt: skip


def values(members: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in members.items() if not isinstance(key, config_json.Shadowed)}


@pytest.mark.parametrize("text", SAME)
def test_both_read_the_same_values(text: str) -> None:
    assert values(config_json.loads(text)) == java_json.loads(text)


@pytest.mark.parametrize("text", NEITHER)
def test_neither_takes_it_and_each_has_its_own_error(text: str) -> None:
    with pytest.raises(ConfigJsonError):
        config_json.loads(text)
    with pytest.raises(RemotingCommandError):
        java_json.loads(text)


def test_a_config_file_keeps_a_spelling_and_a_body_does_not() -> None:
    text = '{"a":1.50,"b":"\\u0041","a":2}'
    assert config_json.dumps(config_json.loads(text), "compact") == text
    assert java_json.dumps(java_json.loads(text)) == '{"a":2,"b":"A"}'
    assert isinstance(config_json.loads('{"a":1.50,"b":"\\n"}')["a"], Verbatim)


def test_only_a_body_has_objects_and_words_as_keys() -> None:
    assert java_json.loads('{{"q":1}:2,true:3}') == {ObjectKey((("q", 1),)): 2, "true": 3}
    for text in ('{{"q":1}:2}', "{true:3}"):
        with pytest.raises(ConfigJsonError, match="a key is expected"):
            config_json.loads(text)
