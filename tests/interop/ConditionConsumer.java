import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A consumer of RocketMQ's: prints the bodies, which are numbers, of what matches a condition, as
 * soon as it has so many; or why it could not start. Arguments: nameserver, topic, count, condition.
 */
public class ConditionConsumer {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        Set<Integer> seen = Collections.synchronizedSet(new TreeSet<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-conditions");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], MessageSelector.bySql(arguments[3]));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Integer.valueOf(new String(message.getBody()))));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (MQClientException refused) {
            System.out.println("refused " + refused.getResponseCode());
            System.exit(0);
        }
        long deadline = System.currentTimeMillis() + 60_000;
        while (seen.size() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        System.out.println(List.copyOf(new TreeSet<>(seen)));
        System.exit(0);
    }
}
