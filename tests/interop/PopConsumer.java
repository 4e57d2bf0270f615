import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A push consumer of RocketMQ's in pop mode. Arguments: nameserver, broker's address, topic, group,
 * how many messages to wait for. Of each message it prints
 * "BODY RECONSUME_TIMES QUEUE POP_CK". Each body that ends in 7 fails at its first attempt.
 */
public class PopConsumer {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");
        String topic = arguments[2];
        String group = arguments[3];
        int count = Integer.parseInt(arguments[4]);
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(arguments[0]);
        admin.start();
        admin.setMessageRequestMode(
                arguments[1], topic, group, MessageRequestMode.POP, 0, 5000);
        Set<String> done = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                all(messages, done)
                        ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                        : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.start();
        long deadline = System.currentTimeMillis() + 90_000;
        while (done.size() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        consumer.shutdown();
        admin.shutdown();
        System.out.flush();
        System.exit(done.size() < count ? 1 : 0);
    }

    static boolean all(List<MessageExt> messages, Set<String> done) {
        boolean good = true;
        for (MessageExt message : messages) {
            String body = new String(message.getBody());
            synchronized (System.out) {
                System.out.println(body + " " + message.getReconsumeTimes() + " "
                        + message.getQueueId() + " "
                        + message.getProperty(MessageConst.PROPERTY_POP_CK));
            }
            if (body.endsWith("7") && message.getReconsumeTimes() == 0) {
                good = false;
            } else {
                done.add(body);
            }
        }
        return good;
    }
}
