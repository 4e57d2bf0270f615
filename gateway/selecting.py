"""The choice of a consumer in a receive or a pull: which messages it wants, and for how long it
waits. Pure."""

from __future__ import annotations

from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.calls import MARGIN_S, USUAL_S, GrpcCall
from saturnmq.gateway.checks import check_expression, milliseconds
from saturnmq.gateway.clients import Client
from saturnmq.gateway.codes import CallRefused, Code
from saturnmq.gateway.settings import POLL_MAX_MS
from saturnmq.protocol.subscription import SQL_EXPRESSION, TAG_EXPRESSION, Subscription
from saturnmq.runtime.errors import SaturnError

KINDS = {
    v2.FilterType.FILTER_TYPE_UNSPECIFIED: TAG_EXPRESSION,
    v2.FilterType.TAG: TAG_EXPRESSION,
    v2.FilterType.SQL: SQL_EXPRESSION,
}


def selected_by(topic: str, expression: Any) -> Subscription:
    """CallRefused: the expression cannot be parsed."""
    kind = KINDS.get(expression.type)
    if kind is None:
        raise CallRefused(
            Code.ILLEGAL_FILTER_EXPRESSION, f"a filter of type {expression.type} is not known here"
        )
    check_expression(expression)
    try:
        return Subscription.parse(topic, expression.expression or None, 0, kind)
    except SaturnError as error:
        raise CallRefused(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def poll_ms_of(call: GrpcCall, client: Client, request: Any, now: float) -> int:
    """The time to wait for messages. The answer must come before the client's deadline."""
    left_s = call.remaining_s(now, POLL_MAX_MS / 1000 + MARGIN_S)
    most_ms = int(max(left_s - MARGIN_S, 0) * 1000)
    if request.HasField("long_polling_timeout"):
        wanted_ms = milliseconds(request.long_polling_timeout)
    else:  # Go's and C++'s clients do not say
        usual_s = USUAL_S
        if client.settings is not None and client.settings.HasField("request_timeout"):
            usual_s = milliseconds(client.settings.request_timeout) / 1000
        wanted_ms = int((left_s - usual_s / 2) * 1000)
    return max(0, min(wanted_ms, most_ms, POLL_MAX_MS))
