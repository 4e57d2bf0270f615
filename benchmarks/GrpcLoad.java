import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * RocketMQ's Java client of version 5 under load; see grpc_clients.py. Told by lines:
 *
 *     send TOPIC COUNT BYTES    so many messages, IN_FLIGHT at a time
 *     receive TOPIC COUNT       receives so many and acknowledges each, RECEIVES calls at a time
 *
 * A line is answered by `ok SECONDS` or `failed WHY`.
 */
public class GrpcLoad {
    static final int IN_FLIGHT = 64, RECEIVES = 8, AT_ONCE = 32;
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;
    static Producer producer;
    static volatile Throwable problem;

    static void send(String topic, int count, int bytes) throws Exception {
        Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(new byte[bytes]).build();
        Semaphore free = new Semaphore(IN_FLIGHT);
        for (int i = 0; i < count && problem == null; i++) {
            free.acquire();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                if (error != null) problem = error;
                free.release();
            });
        }
        free.acquire(IN_FLIGHT);
    }

    static void receive(String topic, int count) throws Exception {
        AtomicInteger acknowledged = new AtomicInteger();
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("load").setAwaitDuration(Duration.ofSeconds(2))
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build()) {
            began = System.nanoTime();
            Semaphore free = new Semaphore(RECEIVES);
            while (acknowledged.get() < count && problem == null) {
                free.acquire();
                consumer.receiveAsync(AT_ONCE, Duration.ofSeconds(60)).whenComplete((views, error) -> {
                    if (error != null) problem = error;
                    else for (MessageView view : views) consumer.ackAsync(view).whenComplete((done, failure) -> {
                        if (failure != null) problem = failure;
                        if (acknowledged.incrementAndGet() >= count) ended = System.nanoTime();
                    });
                    free.release();
                });
            }
            free.acquire(RECEIVES);
        }
    }

    static volatile long began, ended;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            problem = null;
            ended = 0;
            try {
                if (producer == null)
                    producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(words[1]).build();
                began = System.nanoTime();
                if (words[0].equals("send")) send(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                else receive(words[1], Integer.parseInt(words[2]));
                if (ended == 0) ended = System.nanoTime();
                System.out.println(problem == null ? "ok " + (ended - began) / 1e9 : "failed " + problem);
            } catch (Throwable error) {
                System.out.println("failed " + error);
            }
        }
        System.exit(0);
    }
}
