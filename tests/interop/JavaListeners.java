import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own push consumers, which print each message that they get as "> GROUP BODY ATTEMPTS",
 * until standard input ends. Arguments: the nameserver, and the start as yyyyMMddHHmmss of the group
 * that begins at a time.
 *
 * Group "acks" reads topic "lists" by up to four: of a list it takes the first two, and the others
 * come again after a second; the second time they are dead letters. Group "ordered" reads topic
 * "rows", never takes "bad", waits 0.1 s and gives up after two more attempts. Groups "first",
 * "last" and "time" read topic "old" from there.
 */
public class JavaListeners {
    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        DefaultMQPushConsumer acks = consumer(nameserver, "acks", "lists");
        acks.setConsumeMessageBatchMaxSize(4);
        acks.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            print("acks", messages);
            if (messages.get(0).getReconsumeTimes() > 0) {
                context.setDelayLevelWhenNextConsume(-1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            context.setAckIndex(1);
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQPushConsumer ordered = consumer(nameserver, "ordered", "rows");
        ordered.setMaxReconsumeTimes(2);
        ordered.setSuspendCurrentQueueTimeMillis(100);
        ordered.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            print("ordered", messages);
            boolean isBad = new String(messages.get(0).getBody()).equals("bad");
            return isBad ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        acks.start();
        ordered.start();
        for (ConsumeFromWhere place : List.of(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)) {
            String group = place.name().substring("CONSUME_FROM_".length()).split("_")[0].toLowerCase();
            DefaultMQPushConsumer starting = consumer(nameserver, group, "old");
            starting.setConsumeFromWhere(place);
            starting.setConsumeTimestamp(arguments[1]);
            starting.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(group, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            starting.start();
        }
        System.out.println("> started");
        while (System.in.read() >= 0) {
        }
        System.exit(0);
    }

    static DefaultMQPushConsumer consumer(String nameserver, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setPollNameServerInterval(200);
        consumer.setHeartbeatBrokerInterval(200);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    static synchronized void print(String group, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.println("> " + group + " " + new String(message.getBody()) + " " + message.getReconsumeTimes());
        }
    }
}
