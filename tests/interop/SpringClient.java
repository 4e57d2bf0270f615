import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.autoconfigure.RocketMQAutoConfiguration;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.ImportAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * A small Spring application over rocketmq-spring: a RocketMQTemplate, and listeners that select by
 * a tag, that read in order, that reply, and that know how transactions ended. Told by a line, it
 * sends in every way and waits for the listeners; it prints "> ok ..." or "> failed ...". The topics
 * are the argument, and with "-ordered" and "-asked" behind it.
 */
@Configuration(proxyBeanMethods = false)
@ImportAutoConfiguration(RocketMQAutoConfiguration.class)
public class SpringClient {
    private static final Set<String> came = new ConcurrentSkipListSet<>();
    private static final Map<Character, List<String>> ordered = new ConcurrentHashMap<>();

    @RocketMQMessageListener(topic = "${interop.topic}", consumerGroup = "spring-readers", selectorExpression = "wanted")
    public static class Listener implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            came.add(body);
        }
    }

    /** Fails once at every tenth message of a key: those behind it wait. */
    @RocketMQMessageListener(topic = "${interop.topic}-ordered", consumerGroup = "spring-ordered",
        consumeMode = ConsumeMode.ORDERLY, suspendCurrentQueueTimeMillis = 100)
    public static class OrderedListener implements RocketMQListener<String> {
        private final Set<String> failed = ConcurrentHashMap.newKeySet();

        @Override
        public void onMessage(String body) {
            if (body.endsWith("0") && failed.add(body)) {
                throw new IllegalStateException("once more");
            }
            ordered.computeIfAbsent(body.charAt(0), key -> new CopyOnWriteArrayList<>()).add(body);
        }
    }

    @RocketMQMessageListener(topic = "${interop.topic}-asked", consumerGroup = "spring-repliers")
    public static class Replier implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String question) {
            return question.toUpperCase();
        }
    }

    /** Its annotation makes it a component of this configuration. */
    @RocketMQTransactionListener
    public static class Transactions implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object how) {
            return (RocketMQLocalTransactionState) how;
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            return RocketMQLocalTransactionState.ROLLBACK;
        }
    }

    @Bean
    public Listener listener() {
        return new Listener();
    }

    @Bean
    public OrderedListener orderedListener() {
        return new OrderedListener();
    }

    @Bean
    public Replier replier() {
        return new Replier();
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.name-server", args[0]);
        System.setProperty("rocketmq.producer.group", "spring-senders");
        System.setProperty("interop.topic", args[1]);
        ConfigurableApplicationContext context = SpringApplication.run(SpringClient.class);
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        String said;
        try {
            said = "ok " + run(context.getBean(RocketMQTemplate.class), args[1]);
        } catch (Throwable problem) {
            problem.printStackTrace();
            said = "failed " + problem.toString().replace('\n', ' ');
        }
        System.out.println("\n> " + said);
        context.close();
        System.exit(0);
    }

    private static String run(RocketMQTemplate template, String topic) throws Exception {
        Set<String> sent = new TreeSet<>();
        String wanted = topic + ":wanted";
        CountDownLatch answers = new CountDownLatch(20);
        for (int number = 0; number < 20; number++) {
            SendResult result = template.syncSend(wanted, "sync" + number);
            require(result.getSendStatus() == SendStatus.SEND_OK, result);
            template.syncSend(topic + ":other", "other" + number);
            template.asyncSend(wanted, "async" + number, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                }
            });
            template.sendOneWay(wanted, "oneway" + number);
            template.syncSendOrderly(wanted, "ordered" + number, "key");
            sent.addAll(Set.of("sync" + number, "async" + number, "oneway" + number, "ordered" + number));
        }
        require(answers.await(30, TimeUnit.SECONDS), "callbacks are missing");
        template.syncSend(wanted, MessageBuilder.withPayload("late").build(), 3000, 1);
        template.syncSendDelayTimeMills(wanted, "timed", 1500);
        sent.addAll(Set.of("late", "timed"));
        List<Message<String>> batch = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            batch.add(MessageBuilder.withPayload("batch" + number).build());
            sent.add("batch" + number);
        }
        require(template.syncSend(wanted, batch).getSendStatus() == SendStatus.SEND_OK, "the batch");
        for (RocketMQLocalTransactionState how : RocketMQLocalTransactionState.values()) {
            template.sendMessageInTransaction(wanted, MessageBuilder.withPayload("transaction-" + how).build(), how);
        }
        sent.add("transaction-COMMIT");
        long end = System.currentTimeMillis() + 60000;
        while (!came.containsAll(sent)) {
            require(System.currentTimeMillis() < end, came.size() + " of " + sent.size() + " came");
            Thread.sleep(10);
        }
        require(came.equals(sent), "strange: " + came);
        return sent.size() + ordered(template, topic + "-ordered") + asked(template, topic + "-asked") + " messages";
    }

    private static int ordered(RocketMQTemplate template, String topic) throws Exception {
        Map<Character, List<String>> sent = new HashMap<>();
        for (int number = 100; number < 160; number++) {
            String body = "abc".charAt(number % 3) + "-" + number;
            template.syncSendOrderly(topic, body, body.substring(0, 1));
            sent.computeIfAbsent(body.charAt(0), key -> new ArrayList<>()).add(body);
        }
        long end = System.currentTimeMillis() + 60000;
        while (ordered.values().stream().mapToInt(List::size).sum() < 60) {
            require(System.currentTimeMillis() < end, "came in order: " + ordered);
            Thread.sleep(10);
        }
        require(ordered.equals(sent), "not in order: " + ordered);
        return 60;
    }

    /**
     * By callbacks: the client that this Spring brings, 5.3.2, ends a blocking request with a time-out
     * as soon as the broker has stored it (RequestResponseFuture.acquireCountDownLatch).
     */
    private static int asked(RocketMQTemplate template, String topic) throws Exception {
        Map<String, Object> replies = new ConcurrentHashMap<>();
        for (int number = 0; number < 10; number++) {
            String question = "question" + number;
            template.sendAndReceive(topic, question, new RocketMQLocalRequestCallback<String>() {
                @Override
                public void onSuccess(String reply) {
                    replies.put(question, reply);
                }

                @Override
                public void onException(Throwable error) {
                    replies.put(question, error);
                }
            }, 30000);
        }
        long end = System.currentTimeMillis() + 60000;
        while (replies.size() < 10) {
            require(System.currentTimeMillis() < end, "replies: " + replies);
            Thread.sleep(10);
        }
        replies.forEach((question, reply) -> require(question.toUpperCase().equals(reply), "the reply: " + reply));
        return 10;
    }

    private static void require(boolean holds, Object what) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(what));
        }
    }
}
