"""A user's file: each public name of `saturnmq` and `saturnmq.aio`, used right and used wrong.

It is not run: tests/unit/test_public_names.py has mypy and pyright look at it. It wants errors on
exactly the lines that end in `# wrong: NAME`, and each public name on one of them and on one that
ends in `# right: NAME`.
"""

import re

from saturnmq import (
    Admin,
    ConsumeResult,
    Credentials,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SaturnError,
    SendHandle,
    SendResult,
    SendStatus,
    SimpleConsumer,
    Sql,
    Transaction,
    TransactionProducer,
    TransactionState,
    aio,
)


class Nothing:
    """What no value is: `nothing(value)` is an error wherever the type of `value` is known."""


def nothing(value: Nothing) -> None: ...


def text(value: str | None) -> None: ...


def number(value: float) -> None: ...


def data(value: bytes | bytearray | memoryview) -> None: ...


def names(value: list[str]) -> None: ...


def table(value: dict[str, str]) -> None: ...


def queues(value: list[MessageQueue]) -> None: ...


def many(messages: list[ReceivedMessage]) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def one(message: ReceivedMessage) -> None: ...


async def many_async(messages: list[ReceivedMessage]) -> ConsumeResult | None:
    return None


def failed(error: SaturnError) -> None: ...


def sent(handle: SendHandle) -> None: ...


def status(value: SendStatus) -> None: ...


def chosen(queues: object, message: Message) -> MessageQueue:
    return MessageQueue("orders", "broker-a", 0)


def not_a_listener(topic: int) -> ConsumeResult:
    return ConsumeResult.RETRY


def decided(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


def local(message: Message, arg: object) -> TransactionState:
    return TransactionState.ROLLBACK


def state(value: TransactionState) -> None: ...


def users(who: Credentials) -> None:
    Credentials("ann", "secret")  # right: Credentials
    Credentials("ann", 3)  # wrong: Credentials
    text(who.access_key)  # right: Credentials.access_key
    nothing(who.access_key)  # wrong: Credentials.access_key
    text(who.secret_key)  # right: Credentials.secret_key
    nothing(who.secret_key)  # wrong: Credentials.secret_key
    text(who.security_token)  # right: Credentials.security_token
    nothing(who.security_token)  # wrong: Credentials.security_token


def values(message: Message, received: ReceivedMessage, handle: SendHandle, sql: Sql) -> None:
    Message("orders", b"body", tag="new", keys=["a"], delay_level=3)  # right: Message
    Message("orders", "body")  # wrong: Message
    MessageQueue("orders", "broker-a", 0)  # right: MessageQueue
    MessageQueue("orders", 0, "broker-a")  # wrong: MessageQueue
    ReceivedMessage(b"frame", 0)  # right: ReceivedMessage
    ReceivedMessage("frame")  # wrong: ReceivedMessage
    SaturnError("text", code=1)  # right: SaturnError
    SaturnError(1)  # wrong: SaturnError
    Sql("price > 3")  # right: Sql
    Sql(3)  # wrong: Sql
    text(sql.expression)  # right: Sql.expression
    nothing(sql.expression)  # wrong: Sql.expression
    number(sql.matches({"price": "3"}))  # right: Sql.matches
    sql.matches("price")  # wrong: Sql.matches
    number(sql.terms)  # right: Sql.terms
    nothing(sql.terms)  # wrong: Sql.terms
    print(handle.done())  # right: SendHandle.done
    nothing(handle.done())  # wrong: SendHandle.done
    print(handle.exception())  # right: SendHandle.exception
    nothing(handle.exception())  # wrong: SendHandle.exception
    status(handle.result(1.0).status)  # right: SendHandle.result
    handle.result("soon")  # wrong: SendHandle.result
    handle.add_done_callback(sent)  # right: SendHandle.add_done_callback
    handle.add_done_callback(text)  # wrong: SendHandle.add_done_callback
    ConsumeResult("RECONSUME_LATER")  # right: ConsumeResult
    nothing(ConsumeResult.SUCCESS)  # wrong: ConsumeResult
    CustomizedRetryPolicy((1000, 5000))  # right: CustomizedRetryPolicy
    CustomizedRetryPolicy("1s")  # wrong: CustomizedRetryPolicy
    number(CustomizedRetryPolicy().waits_ms[0])  # right: CustomizedRetryPolicy.waits_ms
    number(CustomizedRetryPolicy().waits_ms)  # wrong: CustomizedRetryPolicy.waits_ms
    number(CustomizedRetryPolicy().wait_ms(1))  # right: CustomizedRetryPolicy.wait_ms
    CustomizedRetryPolicy().wait_ms("1")  # wrong: CustomizedRetryPolicy.wait_ms
    ExponentialRetryPolicy(1000, 60_000, 3)  # right: ExponentialRetryPolicy
    ExponentialRetryPolicy("1s")  # wrong: ExponentialRetryPolicy
    number(ExponentialRetryPolicy().initial_ms)  # right: ExponentialRetryPolicy.initial_ms
    text(ExponentialRetryPolicy().initial_ms)  # wrong: ExponentialRetryPolicy.initial_ms
    number(ExponentialRetryPolicy().max_ms)  # right: ExponentialRetryPolicy.max_ms
    text(ExponentialRetryPolicy().max_ms)  # wrong: ExponentialRetryPolicy.max_ms
    number(ExponentialRetryPolicy().multiplier)  # right: ExponentialRetryPolicy.multiplier
    text(ExponentialRetryPolicy().multiplier)  # wrong: ExponentialRetryPolicy.multiplier
    number(ExponentialRetryPolicy().wait_ms(1))  # right: ExponentialRetryPolicy.wait_ms
    ExponentialRetryPolicy().wait_ms("1")  # wrong: ExponentialRetryPolicy.wait_ms
    Retry(delay_level=5, done=2, suspend_s=0.5)  # right: Retry
    Retry("5")  # wrong: Retry
    number(Retry().delay_level)  # right: Retry.delay_level
    text(Retry().delay_level)  # wrong: Retry.delay_level
    number(Retry().done)  # right: Retry.done
    text(Retry().done)  # wrong: Retry.done
    print(Retry().suspend_s)  # right: Retry.suspend_s
    number(Retry().suspend_s)  # wrong: Retry.suspend_s
    SendStatus("SEND_OK")  # right: SendStatus
    nothing(SendStatus.OK)  # wrong: SendStatus
    TransactionState(8)  # right: TransactionState
    nothing(TransactionState.UNKNOWN)  # wrong: TransactionState
    many([received])
    message.keys = "a b"


def messages(message: Message) -> None:
    data(message.body)  # right: Message.body
    nothing(message.body)  # wrong: Message.body
    number(message.delay_level)  # right: Message.delay_level
    nothing(message.delay_level)  # wrong: Message.delay_level
    number(message.flag)  # right: Message.flag
    nothing(message.flag)  # wrong: Message.flag
    names(message.keys)  # right: Message.keys
    nothing(message.keys)  # wrong: Message.keys
    table(message.properties)  # right: Message.properties
    nothing(message.properties)  # wrong: Message.properties
    text(message.sharding_key)  # right: Message.sharding_key
    nothing(message.sharding_key)  # wrong: Message.sharding_key
    text(message.tag)  # right: Message.tag
    nothing(message.tag)  # wrong: Message.tag
    text(message.topic)  # right: Message.topic
    nothing(message.topic)  # wrong: Message.topic
    text(message.unique_id)  # right: Message.unique_id
    nothing(message.unique_id)  # wrong: Message.unique_id


def message_queues(queue: MessageQueue) -> None:
    text(queue.broker_name)  # right: MessageQueue.broker_name
    nothing(queue.broker_name)  # wrong: MessageQueue.broker_name
    number(queue.queue_id)  # right: MessageQueue.queue_id
    nothing(queue.queue_id)  # wrong: MessageQueue.queue_id
    text(queue.topic)  # right: MessageQueue.topic
    nothing(queue.topic)  # wrong: MessageQueue.topic


def received_messages(received: ReceivedMessage) -> None:
    data(received.body)  # right: ReceivedMessage.body
    nothing(received.body)  # wrong: ReceivedMessage.body
    number(received.body_crc)  # right: ReceivedMessage.body_crc
    nothing(received.body_crc)  # wrong: ReceivedMessage.body_crc
    text(received.born_host)  # right: ReceivedMessage.born_host
    nothing(received.born_host)  # wrong: ReceivedMessage.born_host
    number(received.born_timestamp)  # right: ReceivedMessage.born_timestamp
    nothing(received.born_timestamp)  # wrong: ReceivedMessage.born_timestamp
    text(received.broker_name)  # right: ReceivedMessage.broker_name
    nothing(received.broker_name)  # wrong: ReceivedMessage.broker_name
    number(received.delay_level)  # right: ReceivedMessage.delay_level
    nothing(received.delay_level)  # wrong: ReceivedMessage.delay_level
    number(received.flag)  # right: ReceivedMessage.flag
    nothing(received.flag)  # wrong: ReceivedMessage.flag
    data(received.frame)  # right: ReceivedMessage.frame
    nothing(received.frame)  # wrong: ReceivedMessage.frame
    number(received.frame_size)  # right: ReceivedMessage.frame_size
    nothing(received.frame_size)  # wrong: ReceivedMessage.frame_size
    names(received.keys)  # right: ReceivedMessage.keys
    nothing(received.keys)  # wrong: ReceivedMessage.keys
    text(received.message_id)  # right: ReceivedMessage.message_id
    nothing(received.message_id)  # wrong: ReceivedMessage.message_id
    text(received.offset_message_id)  # right: ReceivedMessage.offset_message_id
    nothing(received.offset_message_id)  # wrong: ReceivedMessage.offset_message_id
    number(received.physical_offset)  # right: ReceivedMessage.physical_offset
    nothing(received.physical_offset)  # wrong: ReceivedMessage.physical_offset
    number(received.prepared_offset)  # right: ReceivedMessage.prepared_offset
    nothing(received.prepared_offset)  # wrong: ReceivedMessage.prepared_offset
    table(received.properties)  # right: ReceivedMessage.properties
    nothing(received.properties)  # wrong: ReceivedMessage.properties
    print(received.queue)  # right: ReceivedMessage.queue
    nothing(received.queue)  # wrong: ReceivedMessage.queue
    number(received.queue_id)  # right: ReceivedMessage.queue_id
    nothing(received.queue_id)  # wrong: ReceivedMessage.queue_id
    number(received.queue_offset)  # right: ReceivedMessage.queue_offset
    nothing(received.queue_offset)  # wrong: ReceivedMessage.queue_offset
    data(received.raw_body)  # right: ReceivedMessage.raw_body
    nothing(received.raw_body)  # wrong: ReceivedMessage.raw_body
    data(received.raw_born_host)  # right: ReceivedMessage.raw_born_host
    nothing(received.raw_born_host)  # wrong: ReceivedMessage.raw_born_host
    data(received.raw_properties)  # right: ReceivedMessage.raw_properties
    nothing(received.raw_properties)  # wrong: ReceivedMessage.raw_properties
    data(received.raw_store_host)  # right: ReceivedMessage.raw_store_host
    nothing(received.raw_store_host)  # wrong: ReceivedMessage.raw_store_host
    data(received.raw_topic)  # right: ReceivedMessage.raw_topic
    nothing(received.raw_topic)  # wrong: ReceivedMessage.raw_topic
    number(received.reconsume_times)  # right: ReceivedMessage.reconsume_times
    nothing(received.reconsume_times)  # wrong: ReceivedMessage.reconsume_times
    text(received.sharding_key)  # right: ReceivedMessage.sharding_key
    nothing(received.sharding_key)  # wrong: ReceivedMessage.sharding_key
    text(received.store_host)  # right: ReceivedMessage.store_host
    nothing(received.store_host)  # wrong: ReceivedMessage.store_host
    number(received.store_timestamp)  # right: ReceivedMessage.store_timestamp
    nothing(received.store_timestamp)  # wrong: ReceivedMessage.store_timestamp
    number(received.stored_body_size)  # right: ReceivedMessage.stored_body_size
    nothing(received.stored_body_size)  # wrong: ReceivedMessage.stored_body_size
    number(received.sys_flag)  # right: ReceivedMessage.sys_flag
    nothing(received.sys_flag)  # wrong: ReceivedMessage.sys_flag
    text(received.tag)  # right: ReceivedMessage.tag
    nothing(received.tag)  # wrong: ReceivedMessage.tag
    text(received.topic)  # right: ReceivedMessage.topic
    nothing(received.topic)  # wrong: ReceivedMessage.topic


def errors(error: SaturnError) -> None:
    number(error.code)  # right: SaturnError.code
    nothing(error.code)  # wrong: SaturnError.code
    text(error.outcome)  # right: SaturnError.outcome
    nothing(error.outcome)  # wrong: SaturnError.outcome
    number(error.refresh_route)  # right: SaturnError.refresh_route
    nothing(error.refresh_route)  # wrong: SaturnError.refresh_route
    number(error.retriable)  # right: SaturnError.retriable
    nothing(error.retriable)  # wrong: SaturnError.retriable


def results(result: SendResult) -> None:
    print(result.batch)  # right: SendResult.batch
    nothing(result.batch)  # wrong: SendResult.batch
    number(result.index)  # right: SendResult.index
    nothing(result.index)  # wrong: SendResult.index
    text(result.message_id)  # right: SendResult.message_id
    nothing(result.message_id)  # wrong: SendResult.message_id
    text(result.offset_message_id)  # right: SendResult.offset_message_id
    nothing(result.offset_message_id)  # wrong: SendResult.offset_message_id
    number(result.ok)  # right: SendResult.ok
    nothing(result.ok)  # wrong: SendResult.ok
    print(result.queue)  # right: SendResult.queue
    nothing(result.queue)  # wrong: SendResult.queue
    number(result.queue_offset)  # right: SendResult.queue_offset
    nothing(result.queue_offset)  # wrong: SendResult.queue_offset
    status(result.status)  # right: SendResult.status
    nothing(result.status)  # wrong: SendResult.status


def handles(handle: SendHandle) -> None:
    print(handle.batch)  # right: SendHandle.batch
    nothing(handle.batch)  # wrong: SendHandle.batch
    number(handle.index)  # right: SendHandle.index
    nothing(handle.index)  # wrong: SendHandle.index
    text(handle.message_id)  # right: SendHandle.message_id
    nothing(handle.message_id)  # wrong: SendHandle.message_id


def producers(producer: Producer, message: Message, queue: MessageQueue) -> None:
    Producer("senders", ["localhost:9876"], retries=3, on_error=failed)  # right: Producer
    Producer("senders", retries="3")  # wrong: Producer
    text(producer.group)  # right: Producer.group
    nothing(producer.group)  # wrong: Producer.group
    number(producer.options.retries)  # right: Producer.options
    nothing(producer.options)  # wrong: Producer.options
    producer.start()  # right: Producer.start
    producer.start(1)  # wrong: Producer.start
    status(producer.send(message, timeout=1.0).status)  # right: Producer.send
    producer.send("text")  # wrong: Producer.send
    sent(producer.send_async(message, queue=queue))  # right: Producer.send_async
    producer.send_async(message, selector=one)  # wrong: Producer.send_async
    status(producer.send_batch([message])[0].status)  # right: Producer.send_batch
    producer.send_batch(message)  # wrong: Producer.send_batch
    sent(producer.send_batch_async([message])[0])  # right: Producer.send_batch_async
    producer.send_batch_async(message)  # wrong: Producer.send_batch_async
    producer.send_oneway(message, sharding_key="key")  # right: Producer.send_oneway
    producer.send_oneway(message, sharding_key=1)  # wrong: Producer.send_oneway
    answer: ReceivedMessage = producer.request(message, timeout=1.0)  # right: Producer.request
    producer.request(b"a body")  # wrong: Producer.request
    producer.reply(answer, b"a body", properties={"a": "b"})  # right: Producer.reply
    producer.reply(message, b"a body")  # wrong: Producer.reply
    text(producer.recall(producer.send(message)))  # right: Producer.recall
    producer.recall(message)  # wrong: Producer.recall
    producer.flush()  # right: Producer.flush
    producer.flush("now")  # wrong: Producer.flush
    producer.close(1.0)  # right: Producer.close
    producer.close("now")  # wrong: Producer.close
    print(producer.send_encoded("orders", b"", 1, queue=queue))  # right: Producer.send_encoded
    producer.send_encoded("orders", "", 1)  # wrong: Producer.send_encoded
    queues(producer.queues("orders"))  # right: Producer.queues
    producer.queues(queue)  # wrong: Producer.queues


def push_consumers(push: PushConsumer, queue: MessageQueue) -> None:
    PushConsumer("readers", listener=many, max_reconsume=3)  # right: PushConsumer
    PushConsumer("readers", listener=not_a_listener)  # wrong: PushConsumer
    text(push.group)  # right: PushConsumer.group
    nothing(push.group)  # wrong: PushConsumer.group
    number(push.ordered)  # right: PushConsumer.ordered
    nothing(push.ordered)  # wrong: PushConsumer.ordered
    number(push.broadcasting)  # right: PushConsumer.broadcasting
    nothing(push.broadcasting)  # wrong: PushConsumer.broadcasting
    print(push.consume_from)  # right: PushConsumer.consume_from
    nothing(push.consume_from)  # wrong: PushConsumer.consume_from
    push.subscribe(re.compile("a.*"), Sql("price > 3"), many_async)  # right: PushConsumer.subscribe
    push.subscribe("orders", "*", listener_one=not_a_listener)  # wrong: PushConsumer.subscribe
    push.unsubscribe("orders")  # right: PushConsumer.unsubscribe
    push.unsubscribe(queue)  # wrong: PushConsumer.unsubscribe
    push.suspend()  # right: PushConsumer.suspend
    push.suspend(1)  # wrong: PushConsumer.suspend
    push.resume()  # right: PushConsumer.resume
    push.resume(1)  # wrong: PushConsumer.resume
    push.start()  # right: PushConsumer.start
    push.start(1)  # wrong: PushConsumer.start
    push.close()  # right: PushConsumer.close
    push.close(1)  # wrong: PushConsumer.close


def simple_consumers(simple: SimpleConsumer, message: ReceivedMessage) -> None:
    SimpleConsumer("workers", ordered=True)  # right: SimpleConsumer
    SimpleConsumer("workers", auto_commit=False)  # wrong: SimpleConsumer
    text(simple.group)  # right: SimpleConsumer.group
    nothing(simple.group)  # wrong: SimpleConsumer.group
    number(simple.ordered)  # right: SimpleConsumer.ordered
    nothing(simple.ordered)  # wrong: SimpleConsumer.ordered
    print(simple.consume_from)  # right: SimpleConsumer.consume_from
    nothing(simple.consume_from)  # wrong: SimpleConsumer.consume_from
    simple.subscribe("orders", "new || changed")  # right: SimpleConsumer.subscribe
    simple.subscribe("orders", 3)  # wrong: SimpleConsumer.subscribe
    simple.unsubscribe("orders")  # right: SimpleConsumer.unsubscribe
    simple.unsubscribe(3)  # wrong: SimpleConsumer.unsubscribe
    simple.start()  # right: SimpleConsumer.start
    simple.start(1)  # wrong: SimpleConsumer.start
    many(simple.receive(8, invisible_s=60))  # right: SimpleConsumer.receive
    simple.receive("8")  # wrong: SimpleConsumer.receive
    simple.ack(message)  # right: SimpleConsumer.ack
    simple.ack("id")  # wrong: SimpleConsumer.ack
    simple.dead_letter([message])  # right: SimpleConsumer.dead_letter
    simple.dead_letter("id")  # wrong: SimpleConsumer.dead_letter
    simple.change_invisible_duration(message, 5)  # right: SimpleConsumer.change_invisible_duration
    simple.change_invisible_duration(message)  # wrong: SimpleConsumer.change_invisible_duration
    simple.close()  # right: SimpleConsumer.close
    simple.close(1)  # wrong: SimpleConsumer.close


def pull_consumers(pull: PullConsumer, queue: MessageQueue) -> None:
    PullConsumer("readers", consume_from=0, auto_commit=False)  # right: PullConsumer
    PullConsumer("readers", listener=many)  # wrong: PullConsumer
    text(pull.group)  # right: PullConsumer.group
    nothing(pull.group)  # wrong: PullConsumer.group
    number(pull.auto_commit)  # right: PullConsumer.auto_commit
    nothing(pull.auto_commit)  # wrong: PullConsumer.auto_commit
    print(pull.consume_from)  # right: PullConsumer.consume_from
    nothing(pull.consume_from)  # wrong: PullConsumer.consume_from
    pull.subscribe("orders", "new || changed")  # right: PullConsumer.subscribe
    pull.subscribe("orders", 3)  # wrong: PullConsumer.subscribe
    pull.unsubscribe(re.compile("orders-.*"))  # right: PullConsumer.unsubscribe
    pull.unsubscribe(queue)  # wrong: PullConsumer.unsubscribe
    pull.assign([queue])  # right: PullConsumer.assign
    pull.assign("orders")  # wrong: PullConsumer.assign
    pull.start()  # right: PullConsumer.start
    pull.start(1)  # wrong: PullConsumer.start
    many(pull.poll(1.0, max_messages=10))  # right: PullConsumer.poll
    pull.poll("1 s")  # wrong: PullConsumer.poll
    pull.commit({queue: 7})  # right: PullConsumer.commit
    pull.commit([queue])  # wrong: PullConsumer.commit
    pull.seek(queue, 7)  # right: PullConsumer.seek
    pull.seek("orders", 7)  # wrong: PullConsumer.seek
    number(pull.seek_to(queue, "first"))  # right: PullConsumer.seek_to
    pull.seek_to("orders", "first")  # wrong: PullConsumer.seek_to
    pull.pause([queue])  # right: PullConsumer.pause
    pull.pause("orders")  # wrong: PullConsumer.pause
    pull.resume([queue])  # right: PullConsumer.resume
    pull.resume("orders")  # wrong: PullConsumer.resume
    queues(pull.paused())  # right: PullConsumer.paused
    nothing(pull.paused())  # wrong: PullConsumer.paused
    print(pull.committed(queue))  # right: PullConsumer.committed
    pull.committed("orders")  # wrong: PullConsumer.committed
    number(pull.lag(queue))  # right: PullConsumer.lag
    pull.lag("orders")  # wrong: PullConsumer.lag
    queues(pull.assignment())  # right: PullConsumer.assignment
    nothing(pull.assignment())  # wrong: PullConsumer.assignment
    print(pull.position(queue))  # right: PullConsumer.position
    pull.position("orders")  # wrong: PullConsumer.position
    pull.close()  # right: PullConsumer.close
    pull.close(1)  # wrong: PullConsumer.close


def admins(admin: Admin, queue: MessageQueue) -> None:
    Admin("localhost:9876", timeout=1.0)  # right: Admin
    Admin(9876)  # wrong: Admin
    number(admin.timeout)  # right: Admin.timeout
    nothing(admin.timeout)  # wrong: Admin.timeout
    admin.start()  # right: Admin.start
    admin.start(1)  # wrong: Admin.start
    text(admin.cluster()[0].address)  # right: Admin.cluster
    admin.cluster("c")  # wrong: Admin.cluster
    text(admin.replicas("broker-a")[0].role)  # right: Admin.replicas
    admin.replicas(0)  # wrong: Admin.replicas
    number(admin.promote("broker-a", 1, force=True).epoch)  # right: Admin.promote
    admin.promote("broker-a")  # wrong: Admin.promote
    number(admin.hand_over("broker-a", 1).epoch)  # right: Admin.hand_over
    admin.hand_over("broker-a", force=True)  # wrong: Admin.hand_over
    text(admin.preview_hand_over("broker-a").role)  # right: Admin.preview_hand_over
    admin.preview_hand_over()  # wrong: Admin.preview_hand_over
    text(admin.drain("localhost")[0].risk)  # right: Admin.drain
    admin.drain(0)  # wrong: Admin.drain
    text(admin.preview_drain("localhost")[0].master)  # right: Admin.preview_drain
    admin.preview_drain("localhost", 1)  # wrong: Admin.preview_drain
    table(admin.broker_status("localhost:10911"))  # right: Admin.broker_status
    admin.broker_status(10911)  # wrong: Admin.broker_status
    admin.delete_expired("localhost:10911")  # right: Admin.delete_expired
    admin.delete_expired(10911)  # wrong: Admin.delete_expired
    admin.delete_unused("localhost:10911")  # right: Admin.delete_unused
    admin.delete_unused(10911)  # wrong: Admin.delete_unused
    number(admin.probe("broker-a").milliseconds)  # right: Admin.probe
    admin.probe(10911)  # wrong: Admin.probe
    number(len(admin.export()))  # right: Admin.export
    admin.export("file")  # wrong: Admin.export
    table(admin.nameserver_settings()["localhost:9876"])  # right: Admin.nameserver_settings
    admin.nameserver_settings("localhost:9876")  # wrong: Admin.nameserver_settings
    admin.change_nameserver_settings({"a": "b"})  # right: Admin.change_nameserver_settings
    admin.change_nameserver_settings({"a": 1})  # wrong: Admin.change_nameserver_settings
    table(admin.kv_config("space"))  # right: Admin.kv_config
    admin.kv_config(1)  # wrong: Admin.kv_config
    admin.put_kv_config("space", "a", "b")  # right: Admin.put_kv_config
    admin.put_kv_config("space", "a")  # wrong: Admin.put_kv_config
    admin.delete_kv_config("space", "a")  # right: Admin.delete_kv_config
    admin.delete_kv_config("space")  # wrong: Admin.delete_kv_config
    names(admin.create_user("ann", "secret"))  # right: Admin.create_user
    admin.create_user("ann")  # wrong: Admin.create_user
    names(admin.update_user("ann", status="disable"))  # right: Admin.update_user
    admin.update_user("ann", "secret")  # wrong: Admin.update_user
    names(admin.delete_user("ann"))  # right: Admin.delete_user
    admin.delete_user()  # wrong: Admin.delete_user
    print(admin.get_user("ann"))  # right: Admin.get_user
    admin.get_user(1)  # wrong: Admin.get_user
    text(admin.list_users("a")[0].kind)  # right: Admin.list_users
    admin.list_users(1)  # wrong: Admin.list_users
    names(admin.create_acl("ann", ["Topic:orders"], ["Pub"], "Allow"))  # right: Admin.create_acl
    admin.create_acl("ann", ["Topic:orders"], ["Pub"])  # wrong: Admin.create_acl
    names(admin.update_acl("ann", ["*"], ["All"], "Deny", ["::1"]))  # right: Admin.update_acl
    admin.update_acl("ann", ["*"], "Deny")  # wrong: Admin.update_acl
    names(admin.delete_acl("ann", "Topic:orders"))  # right: Admin.delete_acl
    admin.delete_acl()  # wrong: Admin.delete_acl
    print(admin.get_acl("ann"))  # right: Admin.get_acl
    admin.get_acl()  # wrong: Admin.get_acl
    text(admin.list_acls("ann")[0].subject)  # right: Admin.list_acls
    admin.list_acls(1)  # wrong: Admin.list_acls
    names(admin.list_topics())  # right: Admin.list_topics
    admin.list_topics("orders")  # wrong: Admin.list_topics
    names(admin.topics())  # right: Admin.topics
    admin.topics("orders")  # wrong: Admin.topics
    print(admin.route("orders").queues)  # right: Admin.route
    admin.route(queue)  # wrong: Admin.route
    admin.create_topic("orders", queues=4, message_type="FIFO")  # right: Admin.create_topic
    admin.create_topic("orders", "4")  # wrong: Admin.create_topic
    admin.alter_topic("orders", write_queues=2, perm=6)  # right: Admin.alter_topic
    admin.alter_topic("orders", 2)  # wrong: Admin.alter_topic
    admin.topic_settings("orders")["broker-a"].attributes  # right: Admin.topic_settings
    admin.topic_settings(queue)  # wrong: Admin.topic_settings
    number(admin.undrained("orders", 2)[0].messages)  # right: Admin.undrained
    admin.undrained("orders")  # wrong: Admin.undrained
    admin.delete_topic("orders")  # right: Admin.delete_topic
    admin.delete_topic(queue)  # wrong: Admin.delete_topic
    number(admin.describe_topic("orders")[0].max_offset)  # right: Admin.describe_topic
    admin.describe_topic(queue)  # wrong: Admin.describe_topic
    number(admin.offsets("orders")[0].min_offset)  # right: Admin.offsets
    admin.offsets(queue)  # wrong: Admin.offsets
    admin.create_group("readers", max_retries=1, orderly=True)  # right: Admin.create_group
    admin.create_group("readers", 1)  # wrong: Admin.create_group
    admin.alter_group("readers", enabled=False, attributes={"a": None})  # right: Admin.alter_group
    admin.alter_group("readers", enabled="no")  # wrong: Admin.alter_group
    admin.set_request_mode("readers", "orders", "POP")  # right: Admin.set_request_mode
    admin.set_request_mode("readers", "orders", "PUSH")  # wrong: Admin.set_request_mode
    names(admin.list_groups())  # right: Admin.list_groups
    admin.list_groups("readers")  # wrong: Admin.list_groups
    number(admin.group_lag("readers", "orders")[0].lag)  # right: Admin.group_lag
    admin.group_lag("readers", queue)  # wrong: Admin.group_lag
    admin.delete_group("readers")  # right: Admin.delete_group
    admin.delete_group(queue)  # wrong: Admin.delete_group
    number(admin.describe_group("readers")[0].max_retries)  # right: Admin.describe_group
    admin.describe_group(queue)  # wrong: Admin.describe_group
    names(admin.groups_of_topic("orders"))  # right: Admin.groups_of_topic
    admin.groups_of_topic(queue)  # wrong: Admin.groups_of_topic
    number(admin.member_queues("readers", "me")[0].cached)  # right: Admin.member_queues
    admin.member_queues("readers", queue)  # wrong: Admin.member_queues
    text(admin.member_stacks("readers", "me"))  # right: Admin.member_stacks
    admin.member_stacks("readers")  # wrong: Admin.member_stacks
    number(admin.reset_offsets("readers", "orders", 0)[queue])  # right: Admin.reset_offsets
    admin.reset_offsets("readers", "orders", "first")  # wrong: Admin.reset_offsets
    number(admin.preview_reset("readers", "orders", 0)[0].skipped)  # right: Admin.preview_reset
    admin.preview_reset("readers", "orders", queue=1)  # wrong: Admin.preview_reset
    number(admin.clone_offsets("readers", "others")[queue])  # right: Admin.clone_offsets
    admin.clone_offsets("readers")  # wrong: Admin.clone_offsets
    number(admin.preview_clone("readers", "others", "orders")[0].target)  # right: Admin.preview_clone
    admin.preview_clone("readers", queue)  # wrong: Admin.preview_clone
    print(admin.broker_settings("127.0.0.1:1")["listenPort"])  # right: Admin.broker_settings
    admin.broker_settings(1)  # wrong: Admin.broker_settings
    admin.change_settings("127.0.0.1:1", {"slaveReadEnable": "true"})  # right: Admin.change_settings
    admin.change_settings("127.0.0.1:1", {"slaveReadEnable": True})  # wrong: Admin.change_settings
    print(admin.producers()[0].client_id)  # right: Admin.producers
    admin.producers("makers")  # wrong: Admin.producers
    number(admin.offset_by_time(queue, 0, "UPPER"))  # right: Admin.offset_by_time
    admin.offset_by_time(queue, 0, "upper")  # wrong: Admin.offset_by_time
    one(admin.message_by_offset_id("0"))  # right: Admin.message_by_offset_id
    admin.message_by_offset_id(0)  # wrong: Admin.message_by_offset_id
    one(admin.find_message("0", "orders"))  # right: Admin.find_message
    admin.find_message("0", queue)  # wrong: Admin.find_message
    number(len(admin.message_trace("0")))  # right: Admin.message_trace
    admin.message_trace(0)  # wrong: Admin.message_trace
    print(admin.find_by_id("0"))  # right: Admin.find_by_id
    admin.find_by_id(0)  # wrong: Admin.find_by_id
    many(admin.find_by_key("orders", "key", 10))  # right: Admin.find_by_key
    admin.find_by_key("orders", limit="10")  # wrong: Admin.find_by_key
    many(admin.dead_letters("readers", 0, limit=10))  # right: Admin.dead_letters
    admin.dead_letters(1)  # wrong: Admin.dead_letters
    number(admin.resend_dead_letters("readers", ["id"]))  # right: Admin.resend_dead_letters
    admin.resend_dead_letters("readers", 1)  # wrong: Admin.resend_dead_letters
    many(admin.find_by_time("orders", 0, 1, limit=10))  # right: Admin.find_by_time
    admin.find_by_time("orders", "today")  # wrong: Admin.find_by_time
    print(admin.find_by_offset(queue, 7))  # right: Admin.find_by_offset
    admin.find_by_offset("orders", 7)  # wrong: Admin.find_by_offset
    number(admin.queue_entries(queue, 7)[0].size)  # right: Admin.queue_entries
    admin.queue_entries("orders", 7)  # wrong: Admin.queue_entries
    letter = admin.dead_letters("readers")[0]
    admin.consume_message_directly(letter, "readers", "me")  # right: Admin.consume_message_directly
    admin.consume_message_directly("id", "readers", "me")  # wrong: Admin.consume_message_directly
    admin.close()  # right: Admin.close
    admin.close(1)  # wrong: Admin.close


def transactions(transaction: Transaction) -> None:
    transaction.begin()  # right: Transaction.begin
    transaction.begin(1)  # wrong: Transaction.begin
    transaction.commit()  # right: Transaction.commit
    transaction.commit("now")  # wrong: Transaction.commit
    transaction.rollback()  # right: Transaction.rollback
    transaction.rollback("now")  # wrong: Transaction.rollback
    transaction.end(TransactionState.UNKNOWN)  # right: Transaction.end
    transaction.end("commit")  # wrong: Transaction.end
    number(transaction.confirmed)  # right: Transaction.confirmed
    nothing(transaction.confirmed)  # wrong: Transaction.confirmed
    text(transaction.message.topic)  # right: Transaction.message
    nothing(transaction.message)  # wrong: Transaction.message
    status(transaction.result.status)  # right: Transaction.result
    nothing(transaction.result)  # wrong: Transaction.result
    state(transaction.state)  # right: Transaction.state
    nothing(transaction.state)  # wrong: Transaction.state
    text(transaction.transaction_id)  # right: Transaction.transaction_id
    nothing(transaction.transaction_id)  # wrong: Transaction.transaction_id


def transaction_producers(producer: TransactionProducer, message: Message) -> None:
    TransactionProducer("payers", check=decided, topics=["pay"])  # right: TransactionProducer
    TransactionProducer("payers", check=text)  # wrong: TransactionProducer
    text(producer.group)  # right: TransactionProducer.group
    nothing(producer.group)  # wrong: TransactionProducer.group
    producer.start()  # right: TransactionProducer.start
    producer.start(1)  # wrong: TransactionProducer.start
    producer.transaction(message).begin()  # right: TransactionProducer.transaction
    producer.transaction("text")  # wrong: TransactionProducer.transaction
    with producer.transaction(message) as transaction:
        transactions(transaction)
    done = producer.send_in_transaction(message, local, 1)
    state(done.state)  # right: TransactionProducer.send_in_transaction
    producer.send_in_transaction(message, one)  # wrong: TransactionProducer.send_in_transaction
    producer.close()  # right: TransactionProducer.close
    producer.close("now")  # wrong: TransactionProducer.close


def ordinary_sends(producer: TransactionProducer, message: Message, queue: MessageQueue) -> None:
    number(producer.options.retries)  # right: TransactionProducer.options
    nothing(producer.options)  # wrong: TransactionProducer.options
    status(producer.send(message, timeout=1.0).status)  # right: TransactionProducer.send
    producer.send("text")  # wrong: TransactionProducer.send
    sent(producer.send_async(message, queue=queue))  # right: TransactionProducer.send_async
    producer.send_async(message, selector=one)  # wrong: TransactionProducer.send_async
    status(producer.send_batch([message])[0].status)  # right: TransactionProducer.send_batch
    producer.send_batch(message)  # wrong: TransactionProducer.send_batch
    sent(producer.send_batch_async([message])[0])  # right: TransactionProducer.send_batch_async
    producer.send_batch_async(message)  # wrong: TransactionProducer.send_batch_async
    producer.send_oneway(message, sharding_key="key")  # right: TransactionProducer.send_oneway
    producer.send_oneway(message, sharding_key=1)  # wrong: TransactionProducer.send_oneway
    answer: ReceivedMessage = producer.request(message, timeout=1.0)  # right: TransactionProducer.request
    producer.request(b"a body")  # wrong: TransactionProducer.request
    producer.reply(answer, b"a body", properties={"a": "b"})  # right: TransactionProducer.reply
    producer.reply(message, b"a body")  # wrong: TransactionProducer.reply
    text(producer.recall(producer.send(message)))  # right: TransactionProducer.recall
    producer.recall(message)  # wrong: TransactionProducer.recall
    producer.flush()  # right: TransactionProducer.flush
    producer.flush("now")  # wrong: TransactionProducer.flush
    print(producer.send_encoded("orders", b"", 1, queue=queue))  # right: TransactionProducer.send_encoded
    producer.send_encoded("orders", "", 1)  # wrong: TransactionProducer.send_encoded
    queues(producer.queues("orders"))  # right: TransactionProducer.queues
    producer.queues(queue)  # wrong: TransactionProducer.queues


async def aio_transactions(producer: aio.TransactionProducer, message: Message) -> None:
    aio.TransactionProducer("payers", check=decided)  # right: aio.TransactionProducer
    aio.TransactionProducer("payers", check=text)  # wrong: aio.TransactionProducer
    text(producer.group)  # right: aio.TransactionProducer.group
    nothing(producer.group)  # wrong: aio.TransactionProducer.group
    await producer.start()  # right: aio.TransactionProducer.start
    await producer.start(1)  # wrong: aio.TransactionProducer.start
    begun = await producer.transaction(message).begin()
    await begun.commit()  # right: aio.TransactionProducer.transaction
    producer.transaction("text")  # wrong: aio.TransactionProducer.transaction
    done = await producer.send_in_transaction(message, local, 1)
    state(done.state)  # right: aio.TransactionProducer.send_in_transaction
    await producer.send_in_transaction(message, one)  # wrong: aio.TransactionProducer.send_in_transaction
    await producer.close()  # right: aio.TransactionProducer.close
    await producer.close("now")  # wrong: aio.TransactionProducer.close


async def aio_ordinary_sends(
    producer: aio.TransactionProducer, message: Message, queue: MessageQueue
) -> None:
    number(producer.options.retries)  # right: aio.TransactionProducer.options
    nothing(producer.options)  # wrong: aio.TransactionProducer.options
    status((await producer.send(message, timeout=1.0)).status)  # right: aio.TransactionProducer.send
    await producer.send("text")  # wrong: aio.TransactionProducer.send
    sent(await producer.send_async(message, queue=queue))  # right: aio.TransactionProducer.send_async
    await producer.send_async(message, selector=one)  # wrong: aio.TransactionProducer.send_async
    status((await producer.send_batch([message]))[0].status)  # right: aio.TransactionProducer.send_batch
    await producer.send_batch(message)  # wrong: aio.TransactionProducer.send_batch
    sent((await producer.send_batch_async([message]))[0])  # right: aio.TransactionProducer.send_batch_async
    await producer.send_batch_async(message)  # wrong: aio.TransactionProducer.send_batch_async
    await producer.send_oneway(message, sharding_key="key")  # right: aio.TransactionProducer.send_oneway
    await producer.send_oneway(message, sharding_key=1)  # wrong: aio.TransactionProducer.send_oneway
    answer: ReceivedMessage = await producer.request(message)  # right: aio.TransactionProducer.request
    await producer.request(b"a body")  # wrong: aio.TransactionProducer.request
    await producer.reply(answer, b"a body")  # right: aio.TransactionProducer.reply
    await producer.reply(message, b"a body")  # wrong: aio.TransactionProducer.reply
    text(await producer.recall("handle"))  # right: aio.TransactionProducer.recall
    await producer.recall(message)  # wrong: aio.TransactionProducer.recall
    await producer.flush()  # right: aio.TransactionProducer.flush
    await producer.flush("now")  # wrong: aio.TransactionProducer.flush
    queues(await producer.queues("orders"))  # right: aio.TransactionProducer.queues
    await producer.queues(queue)  # wrong: aio.TransactionProducer.queues


async def aio_producers(producer: aio.Producer, message: Message, queue: MessageQueue) -> None:
    aio.Producer("senders", ["localhost:9876"], retries=3, on_error=failed)  # right: aio.Producer
    aio.Producer("senders", retries="3")  # wrong: aio.Producer
    text(producer.group)  # right: aio.Producer.group
    nothing(producer.group)  # wrong: aio.Producer.group
    number(producer.options.retries)  # right: aio.Producer.options
    nothing(producer.options)  # wrong: aio.Producer.options
    await producer.start()  # right: aio.Producer.start
    await producer.start(1)  # wrong: aio.Producer.start
    status((await producer.send(message, timeout=1.0)).status)  # right: aio.Producer.send
    await producer.send("text")  # wrong: aio.Producer.send
    sent(await producer.send_async(message, queue=queue))  # right: aio.Producer.send_async
    await producer.send_async(message, selector=one)  # wrong: aio.Producer.send_async
    status((await producer.send_batch([message]))[0].status)  # right: aio.Producer.send_batch
    await producer.send_batch(message)  # wrong: aio.Producer.send_batch
    sent((await producer.send_batch_async([message]))[0])  # right: aio.Producer.send_batch_async
    await producer.send_batch_async(message)  # wrong: aio.Producer.send_batch_async
    await producer.send_oneway(message, sharding_key="key")  # right: aio.Producer.send_oneway
    await producer.send_oneway(message, sharding_key=1)  # wrong: aio.Producer.send_oneway
    answer: ReceivedMessage = await producer.request(message)  # right: aio.Producer.request
    await producer.request(b"a body")  # wrong: aio.Producer.request
    await producer.reply(answer, b"a body")  # right: aio.Producer.reply
    await producer.reply(message, b"a body")  # wrong: aio.Producer.reply
    text(await producer.recall("handle"))  # right: aio.Producer.recall
    await producer.recall(message)  # wrong: aio.Producer.recall
    await producer.flush()  # right: aio.Producer.flush
    await producer.flush("now")  # wrong: aio.Producer.flush
    queues(await producer.queues("orders"))  # right: aio.Producer.queues
    await producer.queues(queue)  # wrong: aio.Producer.queues
    await producer.close(1.0)  # right: aio.Producer.close
    await producer.close("now")  # wrong: aio.Producer.close


async def aio_push_consumers(push: aio.PushConsumer, queue: MessageQueue) -> None:
    aio.PushConsumer("readers", listener=many, max_reconsume=3)  # right: aio.PushConsumer
    aio.PushConsumer("readers", listener=not_a_listener)  # wrong: aio.PushConsumer
    text(push.group)  # right: aio.PushConsumer.group
    nothing(push.group)  # wrong: aio.PushConsumer.group
    number(push.ordered)  # right: aio.PushConsumer.ordered
    nothing(push.ordered)  # wrong: aio.PushConsumer.ordered
    number(push.broadcasting)  # right: aio.PushConsumer.broadcasting
    nothing(push.broadcasting)  # wrong: aio.PushConsumer.broadcasting
    print(push.consume_from)  # right: aio.PushConsumer.consume_from
    nothing(push.consume_from)  # wrong: aio.PushConsumer.consume_from
    push.subscribe("orders", Sql("price > 3"), many_async)  # right: aio.PushConsumer.subscribe
    push.subscribe("orders", "*", listener_one=not_a_listener)  # wrong: aio.PushConsumer.subscribe
    push.unsubscribe("orders")  # right: aio.PushConsumer.unsubscribe
    push.unsubscribe(queue)  # wrong: aio.PushConsumer.unsubscribe
    push.suspend()  # right: aio.PushConsumer.suspend
    push.suspend(1)  # wrong: aio.PushConsumer.suspend
    push.resume()  # right: aio.PushConsumer.resume
    push.resume(1)  # wrong: aio.PushConsumer.resume
    await push.start()  # right: aio.PushConsumer.start
    await push.start(1)  # wrong: aio.PushConsumer.start
    await push.close()  # right: aio.PushConsumer.close
    await push.close(1)  # wrong: aio.PushConsumer.close


async def aio_pull_consumers(pull: aio.PullConsumer, queue: MessageQueue) -> None:
    aio.PullConsumer("readers", consume_from=0, auto_commit=False)  # right: aio.PullConsumer
    aio.PullConsumer("readers", listener=many)  # wrong: aio.PullConsumer
    text(pull.group)  # right: aio.PullConsumer.group
    nothing(pull.group)  # wrong: aio.PullConsumer.group
    number(pull.auto_commit)  # right: aio.PullConsumer.auto_commit
    nothing(pull.auto_commit)  # wrong: aio.PullConsumer.auto_commit
    print(pull.consume_from)  # right: aio.PullConsumer.consume_from
    nothing(pull.consume_from)  # wrong: aio.PullConsumer.consume_from
    pull.subscribe("orders", "new || changed")  # right: aio.PullConsumer.subscribe
    pull.subscribe("orders", 3)  # wrong: aio.PullConsumer.subscribe
    pull.unsubscribe(re.compile("orders-.*"))  # right: aio.PullConsumer.unsubscribe
    pull.unsubscribe(queue)  # wrong: aio.PullConsumer.unsubscribe
    pull.assign([queue])  # right: aio.PullConsumer.assign
    pull.assign("orders")  # wrong: aio.PullConsumer.assign
    await pull.start()  # right: aio.PullConsumer.start
    await pull.start(1)  # wrong: aio.PullConsumer.start
    many(await pull.poll(1.0, max_messages=10))  # right: aio.PullConsumer.poll
    await pull.poll("1 s")  # wrong: aio.PullConsumer.poll
    await pull.commit({queue: 7})  # right: aio.PullConsumer.commit
    await pull.commit([queue])  # wrong: aio.PullConsumer.commit
    pull.seek(queue, 7)  # right: aio.PullConsumer.seek
    pull.seek("orders", 7)  # wrong: aio.PullConsumer.seek
    number(await pull.seek_to(queue, "first"))  # right: aio.PullConsumer.seek_to
    await pull.seek_to("orders", "first")  # wrong: aio.PullConsumer.seek_to
    pull.pause([queue])  # right: aio.PullConsumer.pause
    pull.pause("orders")  # wrong: aio.PullConsumer.pause
    pull.resume([queue])  # right: aio.PullConsumer.resume
    pull.resume("orders")  # wrong: aio.PullConsumer.resume
    queues(pull.paused())  # right: aio.PullConsumer.paused
    nothing(pull.paused())  # wrong: aio.PullConsumer.paused
    print(await pull.committed(queue))  # right: aio.PullConsumer.committed
    await pull.committed("orders")  # wrong: aio.PullConsumer.committed
    number(await pull.lag(queue))  # right: aio.PullConsumer.lag
    await pull.lag("orders")  # wrong: aio.PullConsumer.lag
    queues(pull.assignment())  # right: aio.PullConsumer.assignment
    nothing(pull.assignment())  # wrong: aio.PullConsumer.assignment
    print(pull.position(queue))  # right: aio.PullConsumer.position
    pull.position("orders")  # wrong: aio.PullConsumer.position
    await pull.close()  # right: aio.PullConsumer.close
    await pull.close(1)  # wrong: aio.PullConsumer.close


async def aio_simple_consumers(simple: aio.SimpleConsumer, message: ReceivedMessage) -> None:
    aio.SimpleConsumer("workers", ordered=True)  # right: aio.SimpleConsumer
    aio.SimpleConsumer("workers", auto_commit=False)  # wrong: aio.SimpleConsumer
    text(simple.group)  # right: aio.SimpleConsumer.group
    nothing(simple.group)  # wrong: aio.SimpleConsumer.group
    number(simple.ordered)  # right: aio.SimpleConsumer.ordered
    nothing(simple.ordered)  # wrong: aio.SimpleConsumer.ordered
    print(simple.consume_from)  # right: aio.SimpleConsumer.consume_from
    nothing(simple.consume_from)  # wrong: aio.SimpleConsumer.consume_from
    simple.subscribe("orders", "new || changed")  # right: aio.SimpleConsumer.subscribe
    simple.subscribe("orders", 3)  # wrong: aio.SimpleConsumer.subscribe
    simple.unsubscribe("orders")  # right: aio.SimpleConsumer.unsubscribe
    simple.unsubscribe(3)  # wrong: aio.SimpleConsumer.unsubscribe
    await simple.start()  # right: aio.SimpleConsumer.start
    await simple.start(1)  # wrong: aio.SimpleConsumer.start
    many(await simple.receive(8, invisible_s=60))  # right: aio.SimpleConsumer.receive
    await simple.receive("8")  # wrong: aio.SimpleConsumer.receive
    await simple.ack(message)  # right: aio.SimpleConsumer.ack
    await simple.ack("id")  # wrong: aio.SimpleConsumer.ack
    await simple.dead_letter([message])  # right: aio.SimpleConsumer.dead_letter
    await simple.dead_letter("id")  # wrong: aio.SimpleConsumer.dead_letter
    await simple.change_invisible_duration(message, 5)  # right: aio.SimpleConsumer.change_invisible_duration
    await simple.change_invisible_duration(message)  # wrong: aio.SimpleConsumer.change_invisible_duration
    await simple.close()  # right: aio.SimpleConsumer.close
    await simple.close(1)  # wrong: aio.SimpleConsumer.close


async def aio_admins(admin: aio.Admin, queue: MessageQueue) -> None:
    aio.Admin("localhost:9876", timeout=1.0)  # right: aio.Admin
    aio.Admin(9876)  # wrong: aio.Admin
    number(admin.timeout)  # right: aio.Admin.timeout
    nothing(admin.timeout)  # wrong: aio.Admin.timeout
    await admin.start()  # right: aio.Admin.start
    await admin.start(1)  # wrong: aio.Admin.start
    text((await admin.cluster())[0].address)  # right: aio.Admin.cluster
    await admin.cluster("c")  # wrong: aio.Admin.cluster
    text((await admin.replicas("broker-a"))[0].role)  # right: aio.Admin.replicas
    await admin.replicas(0)  # wrong: aio.Admin.replicas
    number((await admin.promote("broker-a", 1, force=True)).epoch)  # right: aio.Admin.promote
    await admin.promote("broker-a")  # wrong: aio.Admin.promote
    number((await admin.hand_over("broker-a", 1)).epoch)  # right: aio.Admin.hand_over
    await admin.hand_over("broker-a", force=True)  # wrong: aio.Admin.hand_over
    text((await admin.preview_hand_over("broker-a")).role)  # right: aio.Admin.preview_hand_over
    await admin.preview_hand_over()  # wrong: aio.Admin.preview_hand_over
    text((await admin.drain("localhost"))[0].risk)  # right: aio.Admin.drain
    await admin.drain(0)  # wrong: aio.Admin.drain
    text((await admin.preview_drain("localhost"))[0].master)  # right: aio.Admin.preview_drain
    await admin.preview_drain("localhost", 1)  # wrong: aio.Admin.preview_drain
    table(await admin.broker_status("localhost:10911"))  # right: aio.Admin.broker_status
    await admin.broker_status(10911)  # wrong: aio.Admin.broker_status
    await admin.delete_expired("localhost:10911")  # right: aio.Admin.delete_expired
    await admin.delete_expired(10911)  # wrong: aio.Admin.delete_expired
    await admin.delete_unused("localhost:10911")  # right: aio.Admin.delete_unused
    await admin.delete_unused(10911)  # wrong: aio.Admin.delete_unused
    number((await admin.probe("broker-a")).milliseconds)  # right: aio.Admin.probe
    await admin.probe(10911)  # wrong: aio.Admin.probe
    number(len(await admin.export()))  # right: aio.Admin.export
    await admin.export("file")  # wrong: aio.Admin.export
    table((await admin.nameserver_settings())["localhost:9876"])  # right: aio.Admin.nameserver_settings
    await admin.nameserver_settings("localhost:9876")  # wrong: aio.Admin.nameserver_settings
    await admin.change_nameserver_settings({"a": "b"})  # right: aio.Admin.change_nameserver_settings
    await admin.change_nameserver_settings({"a": 1})  # wrong: aio.Admin.change_nameserver_settings
    table((await admin.kv_config("space")))  # right: aio.Admin.kv_config
    await admin.kv_config(1)  # wrong: aio.Admin.kv_config
    await admin.put_kv_config("space", "a", "b")  # right: aio.Admin.put_kv_config
    await admin.put_kv_config("space", "a")  # wrong: aio.Admin.put_kv_config
    await admin.delete_kv_config("space", "a")  # right: aio.Admin.delete_kv_config
    await admin.delete_kv_config("space")  # wrong: aio.Admin.delete_kv_config
    names(await admin.create_user("ann", "secret"))  # right: aio.Admin.create_user
    await admin.create_user("ann")  # wrong: aio.Admin.create_user
    names(await admin.update_user("ann", status="disable"))  # right: aio.Admin.update_user
    await admin.update_user("ann", "secret")  # wrong: aio.Admin.update_user
    names(await admin.delete_user("ann"))  # right: aio.Admin.delete_user
    await admin.delete_user()  # wrong: aio.Admin.delete_user
    print(await admin.get_user("ann"))  # right: aio.Admin.get_user
    await admin.get_user(1)  # wrong: aio.Admin.get_user
    text((await admin.list_users("a"))[0].kind)  # right: aio.Admin.list_users
    await admin.list_users(1)  # wrong: aio.Admin.list_users
    names(await admin.create_acl("ann", ["Topic:orders"], ["Pub"], "Allow"))  # right: aio.Admin.create_acl
    await admin.create_acl("ann", ["Topic:orders"], ["Pub"])  # wrong: aio.Admin.create_acl
    names(await admin.update_acl("ann", ["*"], ["All"], "Deny", ["::1"]))  # right: aio.Admin.update_acl
    await admin.update_acl("ann", ["*"], "Deny")  # wrong: aio.Admin.update_acl
    names(await admin.delete_acl("ann", "Topic:orders"))  # right: aio.Admin.delete_acl
    await admin.delete_acl()  # wrong: aio.Admin.delete_acl
    print(await admin.get_acl("ann"))  # right: aio.Admin.get_acl
    await admin.get_acl()  # wrong: aio.Admin.get_acl
    text((await admin.list_acls("ann"))[0].subject)  # right: aio.Admin.list_acls
    await admin.list_acls(1)  # wrong: aio.Admin.list_acls
    names(await admin.list_topics())  # right: aio.Admin.list_topics
    await admin.list_topics("orders")  # wrong: aio.Admin.list_topics
    names(await admin.topics())  # right: aio.Admin.topics
    await admin.topics("orders")  # wrong: aio.Admin.topics
    print((await admin.route("orders")).queues)  # right: aio.Admin.route
    await admin.route(queue)  # wrong: aio.Admin.route
    await admin.create_topic(
        "orders", queues=4, message_type="FIFO"
    )  # right: aio.Admin.create_topic
    await admin.create_topic("orders", "4")  # wrong: aio.Admin.create_topic
    await admin.alter_topic("orders", read_queues=2)  # right: aio.Admin.alter_topic
    await admin.alter_topic("orders", 2)  # wrong: aio.Admin.alter_topic
    (await admin.topic_settings("orders")).values()  # right: aio.Admin.topic_settings
    await admin.topic_settings(queue)  # wrong: aio.Admin.topic_settings
    number((await admin.undrained("orders", 2))[0].messages)  # right: aio.Admin.undrained
    await admin.undrained(queue, 2)  # wrong: aio.Admin.undrained
    await admin.delete_topic("orders")  # right: aio.Admin.delete_topic
    await admin.delete_topic(queue)  # wrong: aio.Admin.delete_topic
    number((await admin.describe_topic("orders"))[0].max_offset)  # right: aio.Admin.describe_topic
    await admin.describe_topic(queue)  # wrong: aio.Admin.describe_topic
    number((await admin.offsets("orders"))[0].min_offset)  # right: aio.Admin.offsets
    await admin.offsets(queue)  # wrong: aio.Admin.offsets
    await admin.create_group(
        "readers", max_retries=1, orderly=True
    )  # right: aio.Admin.create_group
    await admin.create_group("readers", 1)  # wrong: aio.Admin.create_group
    await admin.set_request_mode("readers", "orders", "PULL")  # right: aio.Admin.set_request_mode
    await admin.set_request_mode("readers", queue, "PULL")  # wrong: aio.Admin.set_request_mode
    await admin.alter_group(
        "readers", retry_policy=CustomizedRetryPolicy((1000,))
    )  # right: aio.Admin.alter_group
    await admin.alter_group("readers", colour="red")  # wrong: aio.Admin.alter_group
    names(await admin.list_groups())  # right: aio.Admin.list_groups
    await admin.list_groups("readers")  # wrong: aio.Admin.list_groups
    number((await admin.group_lag("readers", "orders"))[0].lag)  # right: aio.Admin.group_lag
    await admin.group_lag("readers", queue)  # wrong: aio.Admin.group_lag
    await admin.delete_group("readers")  # right: aio.Admin.delete_group
    await admin.delete_group(queue)  # wrong: aio.Admin.delete_group
    number((await admin.describe_group("readers"))[0].max_retries)  # right: aio.Admin.describe_group
    await admin.describe_group(queue)  # wrong: aio.Admin.describe_group
    names(await admin.groups_of_topic("orders"))  # right: aio.Admin.groups_of_topic
    await admin.groups_of_topic(queue)  # wrong: aio.Admin.groups_of_topic
    number((await admin.member_queues("readers", "me"))[0].cached)  # right: aio.Admin.member_queues
    await admin.member_queues("readers", queue)  # wrong: aio.Admin.member_queues
    text(await admin.member_stacks("readers", "me"))  # right: aio.Admin.member_stacks
    await admin.member_stacks("readers")  # wrong: aio.Admin.member_stacks
    number(
        (await admin.reset_offsets("readers", "orders", 0))[queue]
    )  # right: aio.Admin.reset_offsets
    await admin.reset_offsets("readers", "orders", "first")  # wrong: aio.Admin.reset_offsets
    number((await admin.preview_reset("readers", "orders", 0))[0].skipped)  # right: aio.Admin.preview_reset
    await admin.preview_reset("readers", "orders", queue=1)  # wrong: aio.Admin.preview_reset
    number((await admin.clone_offsets("readers", "others"))[queue])  # right: aio.Admin.clone_offsets
    await admin.clone_offsets("readers")  # wrong: aio.Admin.clone_offsets
    number((await admin.preview_clone("readers", "others"))[0].target)  # right: aio.Admin.preview_clone
    await admin.preview_clone("readers", queue)  # wrong: aio.Admin.preview_clone
    print((await admin.broker_settings("127.0.0.1:1"))["listenPort"])  # right: aio.Admin.broker_settings
    await admin.broker_settings(1)  # wrong: aio.Admin.broker_settings
    await admin.change_settings("127.0.0.1:1", {"a": "b"})  # right: aio.Admin.change_settings
    await admin.change_settings("127.0.0.1:1", {"a": 1})  # wrong: aio.Admin.change_settings
    print((await admin.producers())[0].client_id)  # right: aio.Admin.producers
    await admin.producers("makers")  # wrong: aio.Admin.producers
    number(await admin.offset_by_time(queue, 0, "UPPER"))  # right: aio.Admin.offset_by_time
    await admin.offset_by_time(queue, 0, "upper")  # wrong: aio.Admin.offset_by_time
    one(await admin.message_by_offset_id("0"))  # right: aio.Admin.message_by_offset_id
    await admin.message_by_offset_id(0)  # wrong: aio.Admin.message_by_offset_id
    one(await admin.find_message("0", "orders"))  # right: aio.Admin.find_message
    await admin.find_message("0", queue)  # wrong: aio.Admin.find_message
    number(len(await admin.message_trace("0")))  # right: aio.Admin.message_trace
    await admin.message_trace(0)  # wrong: aio.Admin.message_trace
    print(await admin.find_by_id("0"))  # right: aio.Admin.find_by_id
    await admin.find_by_id(0)  # wrong: aio.Admin.find_by_id
    many(await admin.find_by_key("orders", "key", 10))  # right: aio.Admin.find_by_key
    await admin.find_by_key("orders", limit="10")  # wrong: aio.Admin.find_by_key
    many(await admin.dead_letters("readers"))  # right: aio.Admin.dead_letters
    await admin.dead_letters(1)  # wrong: aio.Admin.dead_letters
    number(await admin.resend_dead_letters("readers"))  # right: aio.Admin.resend_dead_letters
    await admin.resend_dead_letters(1)  # wrong: aio.Admin.resend_dead_letters
    many(await admin.find_by_time("orders", 0, 1, limit=10))  # right: aio.Admin.find_by_time
    await admin.find_by_time("orders", "today")  # wrong: aio.Admin.find_by_time
    print(await admin.find_by_offset(queue, 7))  # right: aio.Admin.find_by_offset
    await admin.find_by_offset("orders", 7)  # wrong: aio.Admin.find_by_offset
    number((await admin.queue_entries(queue, 7))[0].size)  # right: aio.Admin.queue_entries
    await admin.queue_entries("orders", 7)  # wrong: aio.Admin.queue_entries
    letter = (await admin.dead_letters("readers"))[0]
    await admin.consume_message_directly(letter, "readers", "me")  # right: aio.Admin.consume_message_directly
    await admin.consume_message_directly("id", "readers", "me")  # wrong: aio.Admin.consume_message_directly
    await admin.close()  # right: aio.Admin.close
    await admin.close(1)  # wrong: aio.Admin.close
