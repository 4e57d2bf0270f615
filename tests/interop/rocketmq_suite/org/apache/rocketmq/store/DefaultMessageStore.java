package org.apache.rocketmq.store;

import org.apache.rocketmq.broker.BrokerController;

/** In the place of RocketMQ's class of this name: the store of a broker that runs elsewhere. */
public class DefaultMessageStore {
    private final BrokerController broker;

    public DefaultMessageStore(BrokerController broker) {
        this.broker = broker;
    }

    /** Ours shows a message when its queue has it. */
    public long dispatchBehindBytes() {
        return 0;
    }

    public long getMaxOffsetInQueue(String topic, int queue) {
        return broker.ask(admin -> admin.maxOffset(broker.queue(topic, queue)));
    }

    public long getMinOffsetInQueue(String topic, int queue) {
        return broker.ask(admin -> admin.minOffset(broker.queue(topic, queue)));
    }

    public long estimateMessageCount(String topic, int queue, long from, long to, MessageFilter filter) {
        throw new UnsupportedOperationException("an estimate of the messages that a filter lets pass");
    }
}
