import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The queues over which a producer of RocketMQ's spreads a topic, in its order, as "> BROKER:NUMBER ..".
 * Arguments: the nameserver, the topic.
 */
public class OrderedQueues {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("ordering");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        StringBuilder queues = new StringBuilder(">");
        for (MessageQueue queue : producer.fetchPublishMessageQueues(arguments[1])) {
            queues.append(" ").append(queue.getBrokerName()).append(":").append(queue.getQueueId());
        }
        System.out.println(queues);
        System.exit(0);
    }
}
