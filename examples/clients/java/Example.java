import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Three messages through RocketMQ's own Java client.
 *
 * <pre>
 * mvn dependency:copy-dependencies -DoutputDirectory=lib
 * java -cp "lib/*" Example.java 127.0.0.1:8081 greetings
 * </pre>
 *
 * The endpoint is the gRPC address of any node. This client speaks TLS and checks no certificate;
 * enableSsl(false) makes it speak plain text.
 */
public class Example {
    static final int COUNT = 3;
    static final Duration INVISIBLE = Duration.ofSeconds(30); // the time in which a message is acknowledged, or it comes again

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).build();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
                SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup("java-readers").setAwaitDuration(Duration.ofSeconds(5))
                    .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build()) {
            for (int number = 0; number < COUNT; number++) {
                byte[] body = ("hello " + number).getBytes(StandardCharsets.UTF_8);
                var message = provider.newMessageBuilder().setTopic(topic).setTag("polite").setBody(body).build();
                System.out.println("sent " + producer.send(message).getMessageId());
            }
            for (int received = 0; received < COUNT;) {
                for (MessageView message : consumer.receive(COUNT, INVISIBLE)) {
                    System.out.println("received " + StandardCharsets.UTF_8.decode(message.getBody()));
                    consumer.ack(message);
                    received++;
                }
            }
        }
    }
}
