import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client of version 5, told by lines; see interop_grpc.py for them. Arguments: the endpoint, tls or plain, and the namespace or "". */
public class GrpcClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;
    static Producer producer;
    static final Map<String, SimpleConsumer> simple = new HashMap<>();
    static final Map<String, PushConsumer> push = new HashMap<>();
    static final Map<String, MessageView> views = new HashMap<>();
    static final Map<String, ConcurrentLinkedQueue<String>> seen = new ConcurrentHashMap<>();

    static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static String described(MessageView view) {
        return String.join(",", body(view), String.valueOf(view.getDeliveryAttempt()), view.getMessageId().toString(),
            view.getTag().orElse("-"), view.getKeys().isEmpty() ? "-" : String.join("+", view.getKeys()),
            view.getMessageGroup().orElse("-"), view.getProperties().getOrDefault("n", "-"));
    }

    static Message message(String[] words) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(words[1]).setBody(words[2].getBytes(StandardCharsets.UTF_8));
        for (int i = 3; i < words.length; i++) {
            String[] field = words[i].split("=", 2);
            switch (field[0]) {
                case "tag": builder.setTag(field[1]); break;
                case "key": builder.setKeys(field[1]); break;
                case "group": builder.setMessageGroup(field[1]); break;
                case "at": builder.setDeliveryTimestamp(Long.parseLong(field[1])); break;
                case "n": builder.addProperty("n", field[1]); break;
                default: // the end of a transaction
            }
        }
        return builder.build();
    }

    static Map<String, FilterExpression> subscription(String[] words) {
        FilterExpressionType type = words[3].equals("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Collections.singletonMap(words[2], new FilterExpression(words[4].replace('_', ' '), type));
    }

    static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "producer":
                producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                    .setTopics(Arrays.copyOfRange(words, 1, words.length))
                    .setTransactionChecker(view -> body(view).startsWith("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK)
                    .build();
                return "started";
            case "send":
                SendReceipt receipt = producer.send(message(words));
                return receipt.getMessageId() + " " + receipt.getRecallHandle();
            case "recall":
                producer.recallMessage(words[1], words[2]);
                return "recalled";
            case "transaction":
                Transaction transaction = producer.beginTransaction();
                producer.send(message(words), transaction);
                if (words[3].equals("end=commit")) {
                    transaction.commit();
                } else if (words[3].equals("end=rollback")) {
                    transaction.rollback();
                }
                return "sent";
            case "simple":
                simple.put(words[1], PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(words[1])
                    .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(subscription(words)).build());
                return "started";
            case "receive":
                List<MessageView> got = simple.get(words[1]).receive(32, Duration.ofSeconds(Long.parseLong(words[2])));
                got.forEach(view -> views.put(body(view), view));
                got.forEach(view -> views.put(body(view) + "@" + view.getDeliveryAttempt(), view));
                return got.stream().map(GrpcClient::described).collect(Collectors.joining(" "));
            case "ack":
                simple.get(words[1]).ack(views.get(words[2]));
                return "done";
            case "hide":
                simple.get(words[1]).changeInvisibleDuration(views.get(words[2]), Duration.ofSeconds(Long.parseLong(words[3])));
                return "done";
            case "push":
                ConcurrentLinkedQueue<String> came = seen.computeIfAbsent(words[1], name -> new ConcurrentLinkedQueue<>());
                push.put(words[1], PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(words[1])
                    .setSubscriptionExpressions(subscription(words)).setEnableFifoConsumeAccelerator(words.length > 5).setMessageListener(view -> {
                        came.add(described(view));
                        return body(view).startsWith("bad") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                    }).build());
                return "started";
            case "seen":
                long end = System.nanoTime() + Duration.ofSeconds(Long.parseLong(words[3])).toNanos();
                while (seen.get(words[1]).size() < Integer.parseInt(words[2]) && System.nanoTime() < end) {
                    Thread.sleep(10);
                }
                return String.join(" ", seen.get(words[1]));
            case "leave":
                if (simple.containsKey(words[1])) {
                    simple.remove(words[1]).close();
                } else {
                    push.remove(words[1]).close();
                }
                return "left";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).setNamespace(arguments[2]);
        String user = System.getenv("SATURNMQ_ACCESS_KEY");
        if (user != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(user, System.getenv("SATURNMQ_SECRET_KEY")));
        }
        configuration = (arguments[1].equals("tls") ? builder : builder.enableSsl(false)).build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String said;
            try {
                said = "ok " + run(line.split(" "));
            } catch (Exception problem) {
                problem.printStackTrace();
                said = "failed " + String.valueOf(problem).replace('\n', ' ');
            }
            System.out.println("\n> " + said);
        }
        System.exit(0);
    }
}
