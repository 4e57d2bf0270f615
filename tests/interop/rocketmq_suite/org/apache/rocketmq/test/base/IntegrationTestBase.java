package org.apache.rocketmq.test.base;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * In the place of RocketMQ's class of this name, from which its tests get their nodes. Here these run
 * already: `suite.nameserver` is the port of the nameserver, `suite.brokers` those of three brokers,
 * TestBrokerName_1 to _3.
 */
public class IntegrationTestBase {
    private static final int TOPIC_S = 30;
    private static final AtomicInteger BROKERS = new AtomicInteger();

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig address = new NettyServerConfig();
        address.setListenPort(Integer.getInteger("suite.nameserver"));
        return new NamesrvController(new NamesrvConfig(), address);
    }

    public static BrokerController createAndStartBroker(String nameserver) {
        int number = BROKERS.getAndIncrement();
        String port = System.getProperty("suite.brokers").split(",")[number];
        return new BrokerController("TestBrokerName_" + (number + 1), "127.0.0.1:" + port, nameserver);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        throw new UnsupportedOperationException("a broker with settings of its own");
    }

    public static String createBaseDir() {
        return Path.of(System.getProperty("java.io.tmpdir"), UUID.randomUUID().toString()).toString();
    }

    public static void initMQAdmin(String nameserver) {
        try {
            MQAdminTestUtils.startAdmin(nameserver);
        } catch (MQClientException problem) {
            throw new IllegalStateException(problem);
        }
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, CQType queues) {
        return initTopic(topic, nameserver, cluster, BaseConf.QUEUE_NUMBERS, queues);
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, TopicMessageType type) {
        return initTopic(topic, nameserver, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, int count, CQType queues) {
        return initTopic(topic, nameserver, cluster, count, queues, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(
        String topic, String nameserver, String cluster, int count, CQType queues, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (queues != CQType.SimpleCQ) {
            attributes.put("+queue.type", queues.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+message.type", type.toString());
        }
        return MQAdminTestUtils.createTopic(nameserver, cluster, topic, count, attributes, TOPIC_S);
    }
}
