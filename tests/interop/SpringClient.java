import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.autoconfigure.RocketMQAutoConfiguration;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.ImportAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * A minimal Spring application over rocketmq-spring: a RocketMQTemplate and one listener. Told by a
 * line, it sends in every way and waits for the listener; it prints "> ok ..." or "> failed ...".
 */
@Configuration(proxyBeanMethods = false)
@ImportAutoConfiguration(RocketMQAutoConfiguration.class)
public class SpringClient {
    private static final Set<String> came = new ConcurrentSkipListSet<>();

    @RocketMQMessageListener(topic = "${interop.topic}", consumerGroup = "spring-readers", selectorExpression = "wanted")
    public static class Listener implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            came.add(body);
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
        sent.add("late");
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
        return sent.size() + " messages";
    }

    private static void require(boolean holds, Object what) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(what));
        }
    }
}
