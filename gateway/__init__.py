"""The RocketMQ 5 client API: `apache.rocketmq.v2.MessagingService` over gRPC.

It translates calls to requests of Remoting and their answers back. Every rule about messages,
groups and transactions is the broker's.
"""
