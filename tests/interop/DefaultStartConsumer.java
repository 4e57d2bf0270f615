import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;

/**
 * Consumers of RocketMQ's with their default start, one for each topic, told by lines what to do:
 * "join TOPIC" answers "joined"; "leave TOPIC COUNT" answers how many of the messages 0 to COUNT - 1
 * did not come within a time. Argument: the nameserver. Only how often the client asks for routes
 * and shares its queues is not the default: a run would take minutes.
 */
public class DefaultStartConsumer {
    static final long PATIENCE_MS = 15_000;

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "200");
        System.setProperty("rocketmq.client.rebalance.minInterval", "100");
        Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
        Map<String, Set<Integer>> seen = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            String topic = words[1];
            if (words[0].equals("join")) {
                seen.put(topic, ConcurrentHashMap.newKeySet());
                consumers.put(topic, join(arguments[0], topic, seen.get(topic)));
                System.out.println("> joined");
            } else {
                int count = Integer.parseInt(words[2]);
                long deadline = System.currentTimeMillis() + PATIENCE_MS;
                while (seen.get(topic).size() < count && System.currentTimeMillis() < deadline) {
                    Thread.sleep(10);
                }
                System.out.println("> " + (count - seen.remove(topic).size()));
                new Thread(consumers.remove(topic)::shutdown).start();
            }
        }
        System.exit(0);
    }

    static DefaultMQPushConsumer join(String nameserver, String topic, Set<Integer> seen)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-" + topic);
        consumer.setInstanceName(topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setPollNameServerInterval(200);
        consumer.setHeartbeatBrokerInterval(200);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Integer.valueOf(new String(message.getBody()))));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
