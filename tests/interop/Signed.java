import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Producers and a consumer of RocketMQ's that sign their requests as one user. */
public class Signed {
    private static String nameserver;
    private static RPCHook hook;

    private static String send(DefaultMQProducer producer, String topic, String body) throws Exception {
        producer.setNamesrvAddr(nameserver);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            if (producer instanceof TransactionMQProducer) {
                return producer.sendMessageInTransaction(message, null).getSendStatus().name();
            }
            return producer.send(message).getSendStatus().name();
        } finally {
            producer.shutdown();
        }
    }

    private static TransactionMQProducer committing(String group) {
        TransactionMQProducer producer = new TransactionMQProducer(group, hook);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    /** The bodies that come within some seconds; the first time that each comes it fails. */
    private static String consume(String group, String topic, int count, int seconds) throws Exception {
        LinkedBlockingQueue<String> bodies = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(1000); // see interop_clients.py, SOON
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt message : messages) {
                if (message.getReconsumeTimes() == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        List<String> found = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (found.size() < count && System.nanoTime() < deadline) {
            String body = bodies.poll(100, TimeUnit.MILLISECONDS);
            if (body != null) {
                found.add(body);
            }
        }
        consumer.shutdown();
        found.sort(null);
        return String.join(",", found);
    }

    private static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "as":
                hook = new AclClientRPCHook(new SessionCredentials(words[1], words[2]));
                return "";
            case "send":
                return send(new DefaultMQProducer("p-" + words[1], hook), words[1], words[2]);
            case "commit":
                return send(committing("t-" + words[1]), words[1], words[2]);
            case "consume":
                return consume(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        nameserver = arguments[0];
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String said;
            try {
                said = "ok " + run(line.split(" "));
            } catch (Exception problem) {
                problem.printStackTrace();
                said = "failed " + (problem + " " + problem.getCause()).replace('\n', ' ');
            }
            System.out.println("\n> " + said);
        }
        System.exit(0);
    }
}
