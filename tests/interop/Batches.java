import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's client in a topic of batches. Arguments: the nameserver, "send" or "read", the topic,
 * a queue of broker-a, and a number: of the first message to send, or the offset to read from.
 * "send" sends batches of 3, 1 and 5 messages, and prints the queue offset of each. "read" prints
 * "OFFSET BODY TAGS" of all messages that come, and then the next offset. What it says begins with
 * "> ".
 */
public class Batches {
    public static void main(String[] arguments) throws Exception {
        MessageQueue queue =
                new MessageQueue(arguments[2], "broker-a", Integer.parseInt(arguments[3]));
        int number = Integer.parseInt(arguments[4]);
        if (arguments[1].equals("send")) {
            send(arguments[0], queue, number);
        } else {
            read(arguments[0], queue, number);
        }
        System.exit(0);
    }

    static void send(String nameserver, MessageQueue queue, int number) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-batches");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        for (int count : new int[] {3, 1, 5}) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                byte[] body = String.valueOf(number).getBytes();
                batch.add(new Message(queue.getTopic(), "t" + number % 2, "k" + number, body));
                number++;
            }
            SendResult result = producer.send(batch, queue);
            System.out.println("> " + result.getSendStatus() + " " + result.getQueueOffset());
        }
        producer.shutdown();
    }

    static void read(String nameserver, MessageQueue queue, long offset) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("java-batches");
        consumer.setNamesrvAddr(nameserver);
        consumer.start();
        while (true) {
            PullResult pulled = consumer.pull(queue, "*", offset, 32);
            offset = pulled.getNextBeginOffset();
            if (pulled.getPullStatus() != PullStatus.FOUND) {
                break;
            }
            for (MessageExt message : pulled.getMsgFoundList()) {
                String body = new String(message.getBody());
                System.out.println(
                        "> " + message.getQueueOffset() + " " + body + " " + message.getTags());
            }
        }
        System.out.println("> " + offset);
        consumer.shutdown();
    }
}
