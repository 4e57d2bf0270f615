package org.apache.rocketmq.broker;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * In the place of RocketMQ's class of this name: a broker that runs elsewhere. What the tests ask of
 * the object is asked of that broker by ordinary requests.
 */
public class BrokerController {
    private static DefaultMQAdminExt admin;
    private final BrokerConfig config = new BrokerConfig();
    private final MessageStoreConfig storeConfig = new MessageStoreConfig();
    private final String address;

    public interface Question<T> {
        T ask(DefaultMQAdminExt admin) throws Exception;
    }

    public BrokerController(String name, String address, String nameserver) {
        this.address = address;
        config.setBrokerName(name);
        config.setBrokerIP1("127.0.0.1");
        config.setListenPort(Integer.parseInt(address.split(":")[1]));
        config.setNamesrvAddr(nameserver);
    }

    public <T> T ask(Question<T> question) {
        try {
            return question.ask(admin(config.getNamesrvAddr()));
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static synchronized DefaultMQAdminExt admin(String nameserver) throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt();
            admin.setInstanceName("controllers");
            admin.setNamesrvAddr(nameserver);
            admin.start();
        }
        return admin;
    }

    public MessageQueue queue(String topic, int number) {
        return new MessageQueue(topic, config.getBrokerName(), number);
    }

    public BrokerConfig getBrokerConfig() {
        return config;
    }

    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    public String getBrokerAddr() {
        return address;
    }

    public DefaultMessageStore getMessageStore() {
        return new DefaultMessageStore(this);
    }

    public ConsumerFilterManager getConsumerFilterManager() {
        return new ConsumerFilterManager();
    }

    public Offsets getConsumerOffsetManager() {
        return new Offsets();
    }

    public Topics getTopicConfigManager() {
        return new Topics();
    }

    public Registration getBrokerOuterAPI() {
        return new Registration();
    }

    public Orders getConsumerOrderInfoManager() {
        return new Orders();
    }

    /** Ours registers by itself. */
    public void registerBrokerAll(boolean order, boolean oneway, boolean force) {
    }

    public void shutdown() {
        throw new UnsupportedOperationException("to stop a broker in this JVM");
    }

    public class Registration {
        public void refreshMetadata() {
        }
    }

    public class Orders {
        public boolean checkBlock(String attempt, String topic, String group, int queue, long invisible) {
            throw new UnsupportedOperationException("whether a queue is blocked for an attempt");
        }
    }

    public class Topics {
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return ask(admin -> new ConcurrentHashMap<>(admin.getAllTopicConfig(address, 3000).getTopicConfigTable()));
        }

        public void updateTopicConfig(TopicConfig topic) {
            ask(admin -> {
                admin.createAndUpdateTopicConfig(address, topic);
                return topic;
            });
        }
    }

    public class Offsets {
        private OffsetWrapper of(String group, String topic, int queue) {
            return ask(admin -> admin.examineConsumeStats(address, group, topic, 3000).getOffsetTable().get(queue(topic, queue)));
        }

        public long queryOffset(String group, String topic, int queue) {
            return of(group, topic, queue).getConsumerOffset();
        }

        public long queryPullOffset(String group, String topic, int queue) {
            return of(group, topic, queue).getPullOffset();
        }
    }
}
