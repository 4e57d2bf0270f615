import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own client on either side of a request. Told by lines: "serve TOPIC" replies to all
 * requests of a topic with their body in capitals, "ask TOPIC BODY" sends one and prints the reply.
 * Answers begin with "> ": RocketMQ's logging prints lines of its own.
 */
public class Replies {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-askers");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 3);
            if (words[0].equals("serve")) {
                serve(args[0], words[1], producer);
                System.out.println("> serving");
            } else {
                byte[] body = words[2].getBytes(StandardCharsets.UTF_8);
                System.out.println("> " + ask(producer, new Message(words[1], body)));
            }
            System.out.flush();
        }
        System.exit(0);
    }

    private static String ask(DefaultMQProducer producer, Message question) {
        try {
            Message reply = producer.request(question, 20000);
            return new String(reply.getBody(), StandardCharsets.UTF_8);
        } catch (Exception error) {
            return error.toString();
        }
    }

    private static void serve(String nameserver, String topic, DefaultMQProducer producer)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-servers");
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    String body = new String(message.getBody(), StandardCharsets.UTF_8);
                    byte[] reply = body.toUpperCase().getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, reply), 5000);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception error) {
                error.printStackTrace();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        consumer.start();
    }
}
