"""SQL92 conditions: ours against RocketMQ's own classes, thousands of random ones and odd ones; and
a consumer of RocketMQ's that gives a broker of ours one."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

from cluster_rig import running
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from interop_nodes import java
from saturnmq import Message, Producer
from saturnmq.drills.fuzz.sql_reference import text_of
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import SubscriptionParseFailed
from sql_rig import conditions, properties

Question = tuple[str, dict[str, str]]

RANDOM = 4000
MESSAGE = {"a": "5", "b": "x'y", "price": "9.5", "TAGS": "paid", "flag": "True", "c$_1": "-3"}
ODD = """
a=5|a = 5 |A = 5|a <> 6|NOT a = 1|NOT (a = 1)|a = 1 OR a = 5 AND TAGS = 'paid'|a|NOT none|NULL
a = 5 IS NULL|a = 5 = TRUE|TRUE = flag|flag = TRUE|a > 4 > 3|a = -5|a = - -5|a = +5|-a = -5|-a
none = nothing|5 <> none|none <> 5|price > 9|price > 9.0|price > 9 OR a = 5|a > c$_1|b = 'x''y'
a BETWEEN 5 AND 3|a NOT BETWEEN 5 AND 3|a BETWEEN -3 AND -5|a BETWEEN -5 AND 5|a BETWEEN '1' AND 5
a BETWEEN TRUE AND 5|a BETWEEN b AND 7|5 BETWEEN 1 AND 7|a IN ('5')|a IN (5)|(a) IN ('5')
'a' IN ('a')|b CONTAINS ''
b NOT CONTAINS ''|none NOT CONTAINS 'x'|NOT (none CONTAINS 'x')|'abc' CONTAINS 'b'
a CONTAINS b|TRUE CONTAINS 'T'|a = NULL|NULL IS NULL|a IS NOT NULL|TRUE = 5|5 = TRUE|5|'x'|NOT 5
a = 'x|a = "x"|a != 1|a.b = 1|a == 5|a = 5L|a = 0|a = 5.|a = .5|a = 5e0|a = 5E+0|a = 1e999
a = 9223372036854775807|a = 9223372036854775808|c$_1 = -3|c$_1 < - 2|a = /* x */ 5|a = /* x 5
a > 'x'|(a = 1) < 3|a >|> 3|(a = 5|()|a AND|AND a|a NOT|a NOT IN|a IS|a IS NOT|a BETWEEN 1|IN ('a')
5 = 5.0|5 < 5.5|2147483648 > 5|'5' = 5|5 = '5'|'x' = 5|a = 3000000000|true|TrUe aNd nOt FaLsE
""".replace("\n", "|").strip("|")
# Where ours differ, see protocol/sql92.py: (condition, theirs, ours).
KNOWN = [
    ("a = 5 b", "T", "E"),
    ("a = 5)", "T", "E"),
    ("a = 007", "F", "E"),
    ("a > 0.0", "E", "T"),
    ("a = 5 -- x", "T", "T"),
    ("a = --5", "T", "E"),
]


def ours(question: Question) -> str:
    try:
        return "T" if Sql(question[0]).matches(question[1]) else "F"
    except SubscriptionParseFailed:
        return "E"


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def theirs(jars: Path, questions: list[Question]) -> str:
    """RocketMQ's answer to each."""
    lines = [
        "\t".join(map(coded, [text, *(part for pair in message.items() for part in pair)]))
        for text, message in questions
    ]
    return java(jars, "Conditions.java", text="\n".join(lines))[-1]


def random_questions() -> list[Question]:
    found: list[Question] = []

    @settings(
        max_examples=RANDOM // 4,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(conditions, st.lists(properties, min_size=4, max_size=4))
    def collect(tree, messages):
        found.extend((text_of(tree), message) for message in messages)

    collect()
    return found


def test_conditions_mean_what_they_mean_to_rocketmq(jars: Path, figures: Counter[str]) -> None:
    questions = [(text, MESSAGE) for text in ODD.split("|")] + random_questions()
    answers = theirs(jars, [*questions, *((text, MESSAGE) for text, _, _ in KNOWN)])
    different = [
        (*question, answer, ours(question))
        for question, answer in zip(questions, answers, strict=False)
        if ours(question) != answer
    ]
    assert different == []
    told = answers[len(questions) :]
    assert list(told) == [answer for _, answer, _ in KNOWN]
    assert [ours((text, MESSAGE)) for text, _, _ in KNOWN] == [answer for _, _, answer in KNOWN]
    assert set(answers) == set("TFE")
    figures["SQL92 conditions asked of messages"] += len(questions)
    figures["of them matches"] += answers.count("T")


def test_a_consumer_of_rocketmqs_gets_what_matches(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        with Producer(nameservers=nameserver) as producer:
            for n in range(3000):
                message = Message("orders", b"%d" % n, tag="AB"[n % 2])
                message.properties["price"] = str(n)
                producer.send_async(message)
        wanted = [n for n in range(3000) if n % 2 and 100 <= n <= 2900]
        condition = "price BETWEEN 100 AND 2900 AND TAGS = 'B'"
        asked = (nameserver, "orders", str(len(wanted)))
        found = java(jars, "ConditionConsumer.java", *asked, condition)[-1]
        assert json.loads(found) == wanted
        refused = java(jars, "ConditionConsumer.java", *asked, "price > 'x'")
        assert refused[-1] == "refused 23"
        figures["messages of a condition to a Java consumer"] += len(wanted)
