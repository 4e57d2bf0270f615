import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own transaction producer, told by lines what to do: "send TOPIC KEY STATE" answers the
 * state of the local transaction; "decide KEY STATE" is what it says from then on when a broker
 * asks; "asked KEY COUNT" answers how often one asked, when that is so often, or after a time. An answer begins with "> ", because the client's
 * log may print to the same place. Arguments: the nameserver, the group.
 */
public class JavaTransactions {
    static final long PATIENCE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        Map<String, LocalTransactionState> decided = new ConcurrentHashMap<>();
        Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(200);
        producer.setHeartbeatBrokerInterval(200);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.computeIfAbsent(message.getKeys(), key -> new AtomicInteger()).incrementAndGet();
                return decided.getOrDefault(message.getKeys(), LocalTransactionState.UNKNOW);
            }
        });
        producer.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("send")) {
                Message message = new Message(words[1], "tag", words[2], words[2].getBytes());
                LocalTransactionState state = LocalTransactionState.valueOf(words[3]);
                TransactionSendResult result = producer.sendMessageInTransaction(message, state);
                System.out.println("> " + result.getLocalTransactionState());
            } else if (words[0].equals("decide")) {
                decided.put(words[1], LocalTransactionState.valueOf(words[2]));
                System.out.println("> decided");
            } else {
                AtomicInteger times = asked.computeIfAbsent(words[1], key -> new AtomicInteger());
                long deadline = System.currentTimeMillis() + PATIENCE_MS;
                while (times.get() < Integer.parseInt(words[2]) && System.currentTimeMillis() < deadline) {
                    Thread.sleep(20);
                }
                System.out.println("> " + times);
            }
        }
        System.exit(0);
    }
}
