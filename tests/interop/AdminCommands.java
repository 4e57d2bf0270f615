import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.consumer.ConsumerSubCommand;
import org.apache.rocketmq.tools.command.offset.GetConsumerStatusCommand;
import org.apache.rocketmq.tools.command.offset.ResetOffsetByTimeOldCommand;

/**
 * RocketMQ's mqadmin, all commands in one JVM. It is told by lines whose words are separated by tabs
 * and answers each with a line that begins with "> ":
 *
 * commands: the names of all commands
 * codes: the codes of all requests, as NAME=NUMBER
 * run SECONDS WORD..: "done" or "late", and in base64 what the command printed until then
 * queues NAMESERVER TOPIC: the queues over which a new producer spreads the topic, in its order, as
 *   BROKER:NUMBER
 * consume GROUP TOPIC: a push consumer joins the group
 * seen: the bodies that it got since it was asked last
 * produce GROUP TOPIC COUNT: a producer sends messages and stays connected; its client id, and the
 *   offset id and unique id of each message
 */
public class AdminCommands {
    private static final PrintStream answers = System.out;
    private static final ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        System.setSecurityManager(new NoExit());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                answer = answer(words);
            } catch (Exception error) {
                answer = "failed " + error;
            }
            answers.println("> " + answer);
            answers.flush();
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "commands":
                return commands();
            case "codes":
                return codes();
            case "queues":
                return queues(words[1], words[2]);
            case "run":
                return run(Long.parseLong(words[1]), Arrays.copyOfRange(words, 2, words.length));
            case "consume":
                return consume(words[1], words[2]);
            case "seen":
                List<String> taken = new ArrayList<>();
                for (String body = seen.poll(); body != null; body = seen.poll()) {
                    taken.add(body);
                }
                return String.join(" ", taken);
            default:
                return produce(words[1], words[2], Integer.parseInt(words[3]));
        }
    }

    private static List<?> known() throws Exception {
        Field field = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        field.setAccessible(true);
        return (List<?>) field.get(null);
    }

    /** Commands that are in the jar, but not in mqadmin's own list; mqadmin adds the others. */
    private static void addUnlisted() throws Exception {
        known().clear(); // a command keeps its client, which cannot be started twice
        MQAdminStartup.initCommand(new ConsumerSubCommand());
        MQAdminStartup.initCommand(new GetConsumerStatusCommand());
        MQAdminStartup.initCommand(new ResetOffsetByTimeOldCommand());
    }

    private static String commands() throws Exception {
        addUnlisted();
        MQAdminStartup.initCommand();
        List<String> names = new ArrayList<>();
        for (Object command : known()) {
            names.add(((SubCommand) command).commandName());
        }
        return String.join(" ", names);
    }

    private static String codes() throws Exception {
        List<String> codes = new ArrayList<>();
        for (Field field : RequestCode.class.getFields()) {
            codes.add(field.getName() + "=" + field.getInt(null));
        }
        return String.join(" ", codes);
    }

    private static String queues(String nameserver, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("ordering");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        List<String> queues = new ArrayList<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
        }
        producer.shutdown();
        return String.join(" ", queues);
    }

    private static String run(long seconds, String[] command) throws Exception {
        addUnlisted();
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(stream);
        System.setErr(stream);
        Thread thread = new Thread(() -> MQAdminStartup.main0(command, null), command[0]);
        thread.setUncaughtExceptionHandler((of, error) -> error.printStackTrace(stream));
        thread.setDaemon(true);
        thread.start();
        thread.join(seconds * 1000);
        boolean late = thread.isAlive();
        stream.flush();
        String text = Base64.getEncoder().encodeToString(printed.toByteArray());
        for (int tries = 0; thread.isAlive() && tries < 50; tries++) {
            thread.interrupt(); // some commands repeat themselves until they are stopped
            thread.join(100);
        }
        return (late ? "late " : "done ") + text;
    }

    private static String consume(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName("live-consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.setHeartbeatBrokerInterval(1000); // see interop_clients.py, SOON
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer.buildMQClientId();
    }

    private static String produce(String group, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setInstanceName("live-producer");
        producer.start();
        List<String> ids = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message message = new Message(topic, "polite", "key-" + number, ("m" + number).getBytes());
            SendResult sent = producer.send(message);
            ids.add(sent.getOffsetMsgId() + " " + sent.getMsgId());
        }
        return producer.buildMQClientId() + " " + String.join(" ", ids);
    }

    /** Some commands end the JVM when they do not like their options. */
    private static class NoExit extends SecurityManager {
        @Override
        public void checkExit(int status) {
            throw new SecurityException("exit " + status);
        }

        @Override
        public void checkPermission(java.security.Permission permission) {
        }
    }
}
