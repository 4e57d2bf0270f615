"""The one table of all requests that a broker answers, with the service for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.exactly_once.staging import StagingService
from saturnmq.broker.handlers.access import AccessService
from saturnmq.broker.handlers.admin import AdminService
from saturnmq.broker.handlers.assignment import AssignmentRequests
from saturnmq.broker.handlers.client_questions import ClientQuestions
from saturnmq.broker.handlers.forbidding import ForbiddingService
from saturnmq.broker.handlers.group_progress import GroupProgress
from saturnmq.broker.handlers.inspection import InspectionService
from saturnmq.broker.handlers.live_settings import SettingsService
from saturnmq.broker.handlers.membership import MembershipService
from saturnmq.broker.handlers.offset_moves import OffsetMoves
from saturnmq.broker.handlers.pop import PopRequests
from saturnmq.broker.handlers.pop_acks import PopAcknowledgements
from saturnmq.broker.handlers.pull import PullService
from saturnmq.broker.handlers.queries import QueryService
from saturnmq.broker.handlers.ranges import RangeService
from saturnmq.broker.handlers.replies import ReplyService
from saturnmq.broker.handlers.retry import RetryService
from saturnmq.broker.handlers.runtime_info import RuntimeInformation
from saturnmq.broker.handlers.send import SendService
from saturnmq.broker.replication.failover import FailoverService
from saturnmq.broker.replication.leaving import Leaving
from saturnmq.broker.replication.mending import Mending
from saturnmq.broker.timer.recall import RecallService
from saturnmq.broker.transactions.ends import EndService
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.command_reading import header_of
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.header_fields import Header
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import Challenges

Handler = Callable[[Endpoint, Command], None]
Typed = Callable[[Endpoint, Command, Any], None]  # takes a request and its header (HEADERS)

# If nodes share a secret, only they and a promoting operator may send these.
OF_MEMBERS = (RequestCode.FENCE, RequestCode.PROMOTE, RequestCode.SLAVE_LEAVES)


@dataclass
class Services:
    sends: SendService
    replies: ReplyService
    pulls: PullService
    pops: PopRequests
    pop_acks: PopAcknowledgements
    assignments: AssignmentRequests
    retries: RetryService
    recalls: RecallService
    lookups: QueryService
    members: MembershipService
    questions: ClientQuestions
    admin: AdminService
    runtime_info: RuntimeInformation
    forbidding: ForbiddingService
    progress: GroupProgress
    moves: OffsetMoves
    inspection: InspectionService
    settings: SettingsService
    failover: FailoverService
    leaving: Leaving
    mending: Mending
    ranges: RangeService
    staging: StagingService
    transactions: EndService
    access: AccessService


def served(s: Services) -> dict[RequestCode, Typed]:
    """The services by request code; each takes the header that the schema has for its code."""
    code = RequestCode
    return {
        code.SEND_MESSAGE: s.sends.on_send,
        code.SEND_MESSAGE_V2: s.sends.on_send,
        code.SEND_BATCH_MESSAGE: s.sends.on_send,
        code.SEND_REPLY_MESSAGE: s.replies.on_reply,
        code.SEND_REPLY_MESSAGE_V2: s.replies.on_reply,
        code.SEND_BATCHES: s.sends.on_send_batches,
        code.PULL_MESSAGE: s.pulls.on_pull,
        code.LITE_PULL_MESSAGE: s.pulls.on_pull,
        code.POP_MESSAGE: s.pops.on_pop,
        code.PEEK_MESSAGE: s.pops.on_peek,
        code.ACK_MESSAGE: s.pop_acks.on_ack,
        code.BATCH_ACK_MESSAGE: s.pop_acks.on_batch_ack,
        code.CHANGE_MESSAGE_INVISIBLETIME: s.pop_acks.on_change,
        code.NOTIFICATION: s.pops.on_notification,
        code.POLLING_INFO: s.pops.on_polling_info,
        code.END_POLL: s.pops.on_end_poll,
        code.CONSUMER_SEND_MSG_BACK: s.retries.on_send_back,
        code.END_TRANSACTION: s.transactions.on_end,
        code.RECALL_MESSAGE: s.recalls.on_recall,
        code.QUERY_MESSAGE: s.lookups.on_query_message,
        code.QUERY_CONSUMER_OFFSET: s.lookups.on_query_offset,
        code.UPDATE_CONSUMER_OFFSET: s.lookups.on_update_offset,
        code.SEARCH_OFFSET_BY_TIMESTAMP: s.lookups.on_search_offset,
        code.GET_MAX_OFFSET: s.lookups.on_max_offset,
        code.GET_MIN_OFFSET: s.lookups.on_min_offset,
        code.GET_EARLIEST_MSG_STORETIME: s.lookups.on_earliest_time,
        code.VIEW_MESSAGE_BY_ID: s.lookups.on_view_message,
        code.HEART_BEAT: s.members.on_heartbeat,
        code.UNREGISTER_CLIENT: s.members.on_unregister,
        code.GET_CONSUMER_LIST_BY_GROUP: s.members.on_consumer_list,
        code.LOCK_BATCH_MQ: s.members.on_lock,
        code.UNLOCK_BATCH_MQ: s.members.on_unlock,
        code.CHECK_CLIENT_CONFIG: s.members.on_check_client,
        code.GET_CONSUMER_CONNECTION_LIST: s.members.on_consumer_connections,
        code.GET_CONSUMER_RUNNING_INFO: s.questions.on_running_info,
        code.CONSUME_MESSAGE_DIRECTLY: s.questions.on_consume_directly,
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: s.questions.on_consumer_status,
        code.GET_PRODUCER_CONNECTION_LIST: s.members.on_producer_connections,
        code.UPDATE_AND_CREATE_TOPIC: s.admin.on_create_topic,
        code.UPDATE_AND_CREATE_TOPIC_LIST: s.admin.on_create_topics,
        code.UPDATE_AND_CREATE_STATIC_TOPIC: s.admin.on_create_static_topic,
        code.DELETE_TOPIC_IN_BROKER: s.admin.on_delete_topic,
        code.GET_TOPIC_CONFIG: s.admin.on_topic_config,
        code.GET_TOPIC_STATS_INFO: s.admin.on_topic_stats,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: s.admin.on_create_group,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: s.admin.on_create_groups,
        code.DELETE_SUBSCRIPTIONGROUP: s.admin.on_delete_group,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: s.admin.on_group_config,
        code.GET_CONSUME_STATS: s.progress.on_consume_stats,
        code.GET_BROKER_CONSUME_STATS: s.progress.on_all_consume_stats,
        code.QUERY_CONSUME_TIME_SPAN: s.progress.on_time_span,
        code.QUERY_SUBSCRIPTION_BY_CONSUMER: s.progress.on_subscription,
        code.INVOKE_BROKER_TO_RESET_OFFSET: s.moves.on_reset,
        code.CLONE_GROUP_OFFSET: s.moves.on_clone,
        code.QUERY_TOPIC_CONSUME_BY_WHO: s.progress.on_who_consumes,
        code.QUERY_TOPICS_BY_CONSUMER: s.progress.on_topics_of_consumer,
        code.QUERY_CORRECTION_OFFSET: s.progress.on_correction,
        code.UPDATE_AND_GET_GROUP_FORBIDDEN: s.forbidding.on_forbid,
        code.EXCHANGE_BROKER_HA_INFO: s.inspection.on_ha_address,
        code.GET_ALL_TOPIC_CONFIG: s.admin.on_all_topics,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: s.admin.on_all_groups,
        code.GET_ALL_CONSUMER_OFFSET: s.admin.on_all_offsets,
        code.GET_ALL_DELAY_OFFSET: s.admin.on_all_delays,
        code.GET_ALL_ACCESS: s.admin.on_all_access,
        code.CHECK_ACCESS: s.access.on_check,
        code.AUTH_CREATE_USER: s.access.on_create_user,
        code.AUTH_UPDATE_USER: s.access.on_update_user,
        code.AUTH_DELETE_USER: s.access.on_delete_user,
        code.AUTH_GET_USER: s.access.on_get_user,
        code.AUTH_LIST_USER: s.access.on_list_users,
        code.AUTH_CREATE_ACL: s.access.on_add_rules,
        code.AUTH_UPDATE_ACL: s.access.on_add_rules,
        code.AUTH_DELETE_ACL: s.access.on_delete_rules,
        code.AUTH_GET_ACL: s.access.on_get_rules,
        code.AUTH_LIST_ACL: s.access.on_list_rules,
        code.QUERY_ASSIGNMENT: s.assignments.on_query,
        code.SET_MESSAGE_REQUEST_MODE: s.assignments.on_set_mode,
        code.GET_ALL_MESSAGE_REQUEST_MODE: s.assignments.on_modes,
        code.GET_TIMER_CHECK_POINT: s.admin.on_timer_check_point,
        code.GET_TIMER_METRICS: s.admin.on_timer_metrics,
        code.GET_BROKER_HA_STATUS: s.admin.on_ha_status,
        code.GET_BROKER_EPOCH_CACHE: s.inspection.on_epochs,
        code.REPLICA_STATE: s.failover.on_state,
        code.FENCE: s.failover.on_fence,
        code.SLAVE_LEAVES: s.leaving.on_leave,
        code.READ_LOG: s.mending.on_read,
        code.READ_QUEUE: s.ranges.on_read,
        code.SPLIT_RANGE: s.ranges.on_cut,
        code.QUEUE_BOUNDS: s.ranges.on_bounds,
        code.STAGE: s.staging.on_stage,
        code.PUBLISH: s.staging.on_publish,
        code.FINISH_EPOCH: s.staging.on_finish,
        code.ABORT_STAGE: s.staging.on_abort,
        code.SINK_STATE: s.staging.on_state,
        code.PROMOTE: s.failover.on_promote,
        code.GET_BROKER_CONFIG: s.settings.on_show,
        code.UPDATE_BROKER_CONFIG: s.settings.on_change,
        code.GET_BROKER_RUNTIME_INFO: s.runtime_info.on_show,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: s.inspection.on_system_topics,
        code.VIEW_BROKER_STATS_DATA: s.inspection.on_statistic,
        code.QUERY_CONSUME_QUEUE: s.inspection.on_queue_entries,
        code.GET_ALL_PRODUCER_INFO: s.inspection.on_all_producers,
        code.DELETE_EXPIRED_COMMITLOG: s.admin.on_clean,
        code.CLEAN_EXPIRED_CONSUMEQUEUE: s.admin.on_clean,
        code.CLEAN_UNUSED_TOPIC: s.admin.on_clean_unused,
    }


def handlers(services: Services, challenges: Challenges) -> dict[int, Handler]:
    """The handlers of raw requests by request code."""
    table = {
        number: _decoded(HEADERS[number], handler) for number, handler in served(services).items()
    }
    for number in OF_MEMBERS:
        table[number] = _if_admitted(table[number], challenges)
    return {int(number): handler for number, handler in table.items()}


def _decoded(header: type[Header], handler: Typed) -> Handler:
    def handle(endpoint: Endpoint, request: Command) -> None:
        handler(endpoint, request, header_of(request, header))

    return handle


def _if_admitted(handler: Handler, challenges: Challenges) -> Handler:
    def handle(endpoint: Endpoint, request: Command) -> None:
        if challenges.admits(endpoint, request):
            handler(endpoint, request)

    return handle
