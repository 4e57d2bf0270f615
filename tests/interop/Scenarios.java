import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * What applications do with RocketMQ's client, any version from 4.9 on. Told by lines, "NAME TOPIC":
 * runs the scenario on the topic and prints "> TOPIC ok ..." or "> TOPIC failed ...". Up to so many
 * run at once as the second argument says, most of them waiting. Each one has a group of its own,
 * the name of the topic, and ends its clients.
 */
public class Scenarios {
    private static final long PATIENCE_MS = 60000;
    private static String nameserver;
    /** Of the scenario that runs in this thread. */
    private static final ThreadLocal<List<Runnable>> ends = ThreadLocal.withInitial(ArrayList::new);

    private interface Check {
        boolean holds() throws Exception;
    }

    private interface Seek {
        void run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        nameserver = args[0];
        ExecutorService threads = Executors.newFixedThreadPool(Integer.parseInt(args[1]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.execute(() -> answer(words[0], words[1]));
        }
        System.exit(0);
    }

    private static void answer(String name, String topic) {
        String said;
        try {
            said = "ok " + run(name, topic);
        } catch (Throwable problem) {
            problem.printStackTrace();
            said = "failed " + problem.toString().replace('\n', ' ');
        }
        Collections.reverse(ends.get());
        ends.get().forEach(Runnable::run);
        ends.remove();
        synchronized (System.out) {
            System.out.println("\n> " + topic + " " + said);
            System.out.flush();
        }
    }

    private static String run(String name, String topic) throws Exception {
        switch (name) {
            case "sync": return sync(topic);
            case "async": return async(topic);
            case "oneway": return oneway(topic);
            case "batch": return batch(topic);
            case "orderly": return orderly(topic);
            case "retry": return retry(topic);
            case "pull": return pull(topic);
            case "transactions": return transactions(topic);
            case "delay": return delay(topic);
            case "lite-subscribe": return liteSubscribe(topic);
            case "lite-assign": return liteAssign(topic);
            case "lite-members": return liteMembers(topic);
            case "namespace": return namespace(topic);
            case "namespace-v2": return namespaceV2(topic);
            case "trace": return trace(topic);
            case "large": return large(topic);
            case "broadcast": return broadcast(topic);
            case "timed": return timed(topic);
            case "pop": return pop(topic);
            default: throw new IllegalArgumentException("no scenario " + name);
        }
    }

    // -- sends, each consumed by a push consumer -------------------------------------------------

    private static String sync(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Set<String> sent = new TreeSet<>();
        SendResult last = null;
        for (int number = 0; number < 100; number++) {
            Message message = new Message(topic, "tag" + number % 2, "key-" + number, bytes("s" + number));
            message.putUserProperty("number", "" + number);
            last = producer.send(message);
            require(last.getSendStatus() == SendStatus.SEND_OK, last);
            require(last.getRegionId() != null, "no region in " + last);
            sent.add("s" + number);
        }
        same(sent, consumed(topic, topic, "*", sent.size()));
        Set<String> odd = new TreeSet<>(sent);
        odd.removeIf(body -> Integer.parseInt(body.substring(1)) % 2 == 0);
        same(odd, consumed(topic, topic + "-tagged", "tag1 || other", odd.size()));
        String id = last.getMsgId();
        MessageExt found = producer.viewMessage(topic, id);
        require(text(found).equals("s99"), "by unique id: " + text(found));
        found = producer.viewMessage(topic, last.getOffsetMsgId());
        require(text(found).equals("s99"), "by offset id: " + text(found));
        until("a key is found", () -> found(producer, topic, "key-7").equals(List.of("s7")));
        MessageQueue queue = last.getMessageQueue();
        require(producer.maxOffset(queue) == last.getQueueOffset() + 1, "the end of " + queue);
        require(producer.minOffset(queue) == 0, "the beginning of " + queue);
        return "100 messages";
    }

    private static List<String> found(DefaultMQProducer producer, String topic, String key) {
        try {
            List<String> bodies = new ArrayList<>();
            long now = System.currentTimeMillis();
            for (MessageExt message
                : producer.queryMessage(topic, key, 32, now - 600000, now + 600000).getMessageList()) {
                bodies.add(text(message));
            }
            return bodies;
        } catch (Exception nothing) {
            return List.of(nothing.toString());
        }
    }

    private static String async(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Set<String> sent = new TreeSet<>();
        CountDownLatch left = new CountDownLatch(300);
        AtomicReference<Object> problem = new AtomicReference<>();
        for (int number = 0; number < 300; number++) {
            sent.add("a" + number);
            producer.send(new Message(topic, bytes("a" + number)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        problem.set(result);
                    }
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    problem.set(error);
                    left.countDown();
                }
            });
        }
        require(left.await(PATIENCE_MS, TimeUnit.MILLISECONDS), "callbacks are missing");
        require(problem.get() == null, problem.get());
        same(sent, consumed(topic, topic, "*", sent.size()));
        return "300 messages";
    }

    private static String oneway(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Set<String> sent = new TreeSet<>();
        for (int number = 0; number < 100; number++) {
            producer.sendOneway(new Message(topic, bytes("o" + number)));
            sent.add("o" + number);
        }
        same(sent, consumed(topic, topic, "*", sent.size()));
        return "100 messages";
    }

    private static String batch(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Set<String> sent = new TreeSet<>();
        for (int batch = 0; batch < 10; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                String body = "b" + (batch * 20 + number);
                messages.add(new Message(topic, "tag", "key " + body, bytes(body)));
                sent.add(body);
            }
            SendResult result = producer.send(messages);
            require(result.getSendStatus() == SendStatus.SEND_OK, result);
            require(result.getMsgId().split(",").length == 20, "ids of a batch: " + result);
            require(result.getOffsetMsgId().split(",").length == 20, "offset ids: " + result);
        }
        same(sent, consumed(topic, topic, "tag", sent.size()));
        return "200 messages";
    }

    private static String large(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        producer.setMaxMessageSize(4 << 20);
        Set<String> sent = new TreeSet<>();
        for (int size : new int[] {4095, 4096, 100000, 1000000}) {
            char[] body = new char[size];
            Arrays.fill(body, 'x');
            body[0] = (char) ('a' + sent.size());
            sent.add(new String(body));
            producer.send(new Message(topic, bytes(new String(body))));
        }
        same(sent, consumed(topic, topic, "*", sent.size()));
        return "4 messages";
    }

    private static String delay(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Map<String, Long> came = new ConcurrentHashMap<>();
        consumer(topic, topic, "*", (messages, context) -> {
            messages.forEach(message -> came.putIfAbsent(text(message), System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Map<String, Long> sent = new HashMap<>();
        for (int number = 0; number < 5; number++) {
            Message message = new Message(topic, bytes("d" + number));
            message.setDelayTimeLevel(1);
            sent.put("d" + number, System.currentTimeMillis());
            producer.send(message);
        }
        until("delayed messages come", () -> came.size() == 5);
        for (String body : sent.keySet()) {
            long took = came.get(body) - sent.get(body);
            require(took >= 1000, body + " came after " + took + " ms");
        }
        return "5 messages";
    }

    /**
     * The properties of timed messages are set by the client's own methods, or by name where it has
     * none (4.9). A broker of RocketMQ's may be early by a fifth of its second ("timed.early").
     */
    private static String timed(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Map<String, Long> came = new ConcurrentHashMap<>();
        Set<String> twice = ConcurrentHashMap.newKeySet();
        consumer(topic, topic, "*", (messages, context) -> {
            for (MessageExt message : messages) {
                if (came.putIfAbsent(text(message), System.currentTimeMillis()) != null) {
                    twice.add(text(message));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Map<String, Long> due = new TreeMap<>();
        long now = System.currentTimeMillis();
        for (int number = 0; number < 5; number++) {
            due.put("seconds-" + number, now + 2000);
            sendTimed(producer, new Message(topic, bytes("seconds-" + number)), "setDelayTimeSec", "TIMER_DELAY_SEC", 2);
            due.put("ms-" + number, now + 2300);
            sendTimed(producer, new Message(topic, bytes("ms-" + number)), "setDelayTimeMs", "TIMER_DELAY_MS", 2300);
            due.put("moment-" + number, now + 2600);
            sendTimed(producer, new Message(topic, bytes("moment-" + number)), "setDeliverTimeMs", "TIMER_DELIVER_MS", now + 2600);
            Message recalled = new Message(topic, bytes("recalled-" + number));
            SendResult result = sendTimed(producer, recalled, "setDelayTimeMs", "TIMER_DELAY_MS", 4000);
            if (!recall(producer, topic, result)) {
                due.put("recalled-" + number, now + 4000);
            }
        }
        until("timed messages come", () -> came.keySet().containsAll(due.keySet()));
        until("the recalled ones would have come", () -> System.currentTimeMillis() >= now + 6000);
        require(came.keySet().equals(due.keySet()), came.keySet() + " came of " + due.keySet());
        require(twice.isEmpty(), "twice: " + twice);
        for (String body : due.keySet()) {
            long late = came.get(body) - due.get(body);
            require(late >= -Long.getLong("timed.early", 0), body + " came " + -late + " ms early");
        }
        return due.size() + " messages";
    }

    private static SendResult sendTimed(
        DefaultMQProducer producer, Message message, String method, String property, long value) throws Exception {
        try {
            Message.class.getMethod(method, long.class).invoke(message, value);
        } catch (NoSuchMethodException old) {
            message.putUserProperty(property, "" + value);
        }
        SendResult result = producer.send(message);
        require(result.getSendStatus() == SendStatus.SEND_OK, result);
        return result;
    }

    /** False: the client has no recall. */
    private static boolean recall(DefaultMQProducer producer, String topic, SendResult result) throws Exception {
        java.lang.reflect.Method recall;
        try {
            recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException old) {
            return false;
        }
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
        Object recalled = recall.invoke(producer, topic, handle);
        require(recalled.equals(result.getMsgId()), recalled + " was recalled, not " + result.getMsgId());
        return true;
    }

    private static String transactions(String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(topic);
        Map<String, LocalTransactionState> known = new ConcurrentHashMap<>();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object how) {
                LocalTransactionState state = (LocalTransactionState) how;
                boolean left = state == LocalTransactionState.UNKNOW;
                known.put(message.getTransactionId(), left ? LocalTransactionState.COMMIT_MESSAGE : state);
                return state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return known.get(message.getTransactionId());
            }
        });
        started(producer);
        Set<String> committed = new TreeSet<>();
        for (int number = 0; number < 30; number++) {
            LocalTransactionState how = LocalTransactionState.values()[number % 3];
            Message message = new Message(topic, bytes("t" + number));
            // RocketMQ's brokers, and ours, ask about a message with this property after 1 s.
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1");
            producer.sendMessageInTransaction(message, how);
            if (how != LocalTransactionState.ROLLBACK_MESSAGE) {
                committed.add("t" + number);
            }
        }
        same(committed, consumed(topic, topic, "*", committed.size()));
        return committed.size() + " messages";
    }

    // -- push consumers ---------------------------------------------------------------------------

    private static String orderly(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        for (int number = 0; number < 200; number++) {
            Message message = new Message(topic, bytes(number % 5 + "-" + number));
            producer.send(message, (queues, each, key) -> queues.get((Integer) key % queues.size()), number % 5);
        }
        Map<String, List<Integer>> came = new ConcurrentHashMap<>();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] parts = text(message).split("-");
                int number = Integer.parseInt(parts[1]);
                if (number % 50 == 0 && failed.add(parts[1])) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                came.computeIfAbsent(parts[0], key -> Collections.synchronizedList(new ArrayList<>())).add(number);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        started(consumer);
        until("all come in order", () -> came.values().stream().mapToInt(List::size).sum() >= 200);
        for (Map.Entry<String, List<Integer>> each : came.entrySet()) {
            List<Integer> sorted = new ArrayList<>(each.getValue());
            Collections.sort(sorted);
            require(sorted.equals(each.getValue()), "key " + each);
            require(sorted.size() == 40, "key " + each);
        }
        return "200 messages";
    }

    private static String retry(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Map<String, List<Integer>> came = new ConcurrentHashMap<>();
        Set<String> topics = new ConcurrentSkipListSet<>();
        consumer(topic, topic, "*", (messages, context) -> {
            boolean again = false;
            for (MessageExt message : messages) {
                topics.add(message.getTopic());
                List<Integer> times = came.computeIfAbsent(text(message), body -> Collections.synchronizedList(new ArrayList<>()));
                times.add(message.getReconsumeTimes());
                again |= message.getReconsumeTimes() == 0;
            }
            context.setDelayLevelWhenNextConsume(1);
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int number = 0; number < 10; number++) {
            producer.send(new Message(topic, bytes("r" + number)));
        }
        until("all come twice", () -> came.values().stream().mapToInt(List::size).sum() >= 20);
        require(came.values().stream().allMatch(List.of(0, 1)::equals), came);
        require(topics.equals(Set.of(topic)), topics);
        return "10 messages";
    }

    private static String broadcast(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Map<String, Set<String>> came = new ConcurrentHashMap<>();
        for (String name : new String[] {"one", "two"}) {
            DefaultMQPushConsumer consumer = consumer(topic);
            broadcasting(consumer);
            consumer.setInstanceName(name);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    came.computeIfAbsent(name, key -> ConcurrentHashMap.newKeySet()).add(text(message));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            started(consumer);
        }
        for (int number = 0; number < 50; number++) {
            producer.send(new Message(topic, bytes("c" + number)));
        }
        until("each gets all", () -> came.size() == 2 && came.values().stream().allMatch(set -> set.size() == 50));
        return "50 messages, twice";
    }

    /** Brokers were told that the group pops; a client of 5.x leaves the shares to them then. */
    private static String pop(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic));
        Map<String, List<Integer>> came = new ConcurrentHashMap<>();
        Set<String> pulled = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic);
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean again = false;
            for (MessageExt message : messages) {
                String body = text(message);
                came.computeIfAbsent(body, key -> Collections.synchronizedList(new ArrayList<>())).add(message.getReconsumeTimes());
                again |= body.endsWith("7") && message.getReconsumeTimes() == 0;
                if (message.getProperty("POP_CK") == null) {
                    pulled.add(body);
                }
            }
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        started(consumer);
        for (int number = 0; number < 40; number++) {
            producer.send(new Message(topic, bytes("p" + number)));
        }
        until("all come, four of them twice", () -> came.values().stream().mapToInt(List::size).sum() >= 44);
        for (Map.Entry<String, List<Integer>> each : came.entrySet()) {
            require(each.getValue().equals(each.getKey().endsWith("7") ? List.of(0, 1) : List.of(0)), each);
        }
        require(came.size() == 40, came.keySet());
        require(pulled.isEmpty(), "pulled, not popped: " + pulled);
        return "40 messages";
    }

    /** The package of MessageModel is not that of 4.9 any more. */
    private static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        Class<?> models = consumer.getMessageModel().getClass();
        Object model = models.getMethod("valueOf", String.class).invoke(null, "BROADCASTING");
        consumer.getClass().getMethod("setMessageModel", models).invoke(consumer, model);
    }

    // -- pull consumers ---------------------------------------------------------------------------

    private static String pull(String topic) throws Exception {
        Set<String> sent = sentTo(topic, 100);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setRegisterTopics(Set.of(topic));
        consumer.start();
        ends.get().add(consumer::shutdown);
        Map<MessageQueue, Long> own = new HashMap<>();
        Set<String> came = new TreeSet<>();
        for (int half = 0; half < 2; half++) {  // the second time nothing is new
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long offset = own.getOrDefault(queue, consumer.minOffset(queue));
                PullResult result = consumer.pull(queue, "*", offset, 7);
                while (result.getPullStatus() == PullStatus.FOUND) {
                    require(half == 0, "pulled again: " + result.getMsgFoundList());
                    require(result.getMsgFoundList().size() <= 7, "more than were asked for");
                    result.getMsgFoundList().forEach(message -> came.add(text(message)));
                    result = consumer.pull(queue, "*", result.getNextBeginOffset(), 7);
                }
                require(result.getNextBeginOffset() == consumer.maxOffset(queue), queue + " ends at " + result);
                own.put(queue, result.getNextBeginOffset());
            }
        }
        same(sent, came);
        MessageQueue queue = own.keySet().iterator().next();
        consumer.updateConsumeOffset(queue, own.get(queue));
        consumer.getOffsetStore().persist(queue);
        until("the offset is committed", () -> consumer.fetchConsumeOffset(queue, true) == own.get(queue));
        require(consumer.searchOffset(queue, 0) == 0, "the offset of the time 0");
        long end = consumer.maxOffset(queue);
        // RocketMQ's answer to a time behind the last message is the end, or the last message.
        long late = consumer.searchOffset(queue, System.currentTimeMillis() + 60000);
        require(late == end || late == end - 1, "the offset of a later time: " + late + " of " + end);
        PullResult beyond = consumer.pull(queue, "*", end + 100, 7);
        require(beyond.getPullStatus() == PullStatus.OFFSET_ILLEGAL, "beyond the end: " + beyond);
        return "100 messages";
    }

    private static String liteSubscribe(String topic) throws Exception {
        Set<String> sent = sentTo(topic, 100);
        DefaultLitePullConsumer consumer = lite(topic);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        Set<String> came = new TreeSet<>();
        until("the half is polled", () -> polled(consumer, came) >= 50);
        consumer.commitSync();
        Map<MessageQueue, Long> committed = new HashMap<>();
        until("the offsets are committed", () -> {
            consumer.commitSync();
            for (MessageQueue queue : consumer.assignment()) {
                committed.put(queue, consumer.committed(queue));
            }
            return committed.values().stream().anyMatch(offset -> offset > 0);
        });
        until("the rest is polled", () -> polled(consumer, came) >= 100);
        same(sent, came);
        // A commit is only noted down, and goes out one-way: what a connection loses is sent again.
        OffsetStore offsets = consumer.getOffsetStore();
        until("the brokers have all offsets", () -> {
            consumer.commitSync();
            offsets.persistAll(consumer.assignment());
            long sum = 0;
            for (MessageQueue queue : consumer.assignment()) {
                sum += Math.max(0, offsets.readOffset(queue, ReadOffsetType.READ_FROM_STORE));
            }
            return sum >= 100;
        });
        consumer.shutdown();
        DefaultLitePullConsumer next = lite(topic);
        next.subscribe(topic, "*");
        next.start();
        sentTo(topic, "later", 5);
        Set<String> more = new TreeSet<>();
        until("the next member gets what is new", () -> polled(next, more) >= 5);
        require(more.stream().allMatch(body -> body.startsWith("later")), "what was committed came again: " + more);
        return "105 messages";
    }

    private static String liteMembers(String topic) throws Exception {
        DefaultLitePullConsumer one = lite(topic);
        DefaultLitePullConsumer two = lite(topic);
        one.setInstanceName("one");
        two.setInstanceName("two");
        for (DefaultLitePullConsumer each : List.of(one, two)) {
            each.subscribe(topic, "*");
            each.start();
        }
        until("each has its half of the queues", () -> {
            one.poll(10);
            two.poll(10);
            Set<MessageQueue> all = new HashSet<>(one.assignment());
            boolean halves = one.assignment().size() == 2 && two.assignment().size() == 2;
            all.addAll(two.assignment());
            return halves && all.size() == 4;
        });
        Set<String> sent = sentTo(topic, 40);
        Set<String> came = new TreeSet<>();
        until("both get all", () -> polled(one, came) + polled(two, came) >= 0 && came.size() >= 40);
        same(sent, came);
        two.shutdown();
        until("one has all queues", () -> {
            one.poll(10);
            return one.assignment().size() == 4;
        });
        return "40 messages";
    }

    private static String liteAssign(String topic) throws Exception {
        sentTo(topic, "old", 40);
        long between = System.currentTimeMillis() + 1;
        until("the clock goes on", () -> System.currentTimeMillis() > between + 5);
        sentTo(topic, "new", 40);
        DefaultLitePullConsumer consumer = lite(topic);
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        require(queues.size() == 4, "queues: " + queues);
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            seeking(() -> consumer.seekToBegin(queue));
        }
        Set<String> came = new TreeSet<>();
        until("all come from the beginning", () -> polled(consumer, came) >= 80);
        came.clear();
        for (MessageQueue queue : queues) {
            seeking(() -> consumer.seek(queue, consumer.offsetForTimestamp(queue, between)));
        }
        until("the new ones come again", () -> polled(consumer, came) >= 40);
        require(came.stream().allMatch(body -> body.startsWith("new")), "by time: " + came);
        MessageQueue first = queues.iterator().next();
        came.clear();
        seeking(() -> consumer.seek(first, 3));
        List<MessageExt> from = new ArrayList<>();
        until("a queue is read from offset 3", () -> from.addAll(consumer.poll(100)) && !from.isEmpty());
        require(from.get(0).getQueueId() == first.getQueueId() && from.get(0).getQueueOffset() == 3, from.get(0));
        for (MessageQueue queue : queues) {
            seeking(() -> consumer.seekToEnd(queue));
        }
        consumer.pause(List.of(first));
        Set<String> all = sentTo(topic, "paused", 40);
        until("the other queues go on", () -> polled(consumer, came) >= 30);
        for (int idle = 0; idle < 5; idle++) {
            polled(consumer, came);
        }
        // The pull that waited at the broker when the queue was paused may still give one.
        require(came.size() <= 31, "a paused queue gave messages: " + came.size());
        consumer.resume(List.of(first));
        until("the queue goes on", () -> polled(consumer, came) >= 40);
        same(all, came);
        Map<MessageQueue, Long> offsets = new HashMap<>();
        for (MessageQueue queue : queues) {
            offsets.put(queue, 5L + queue.getQueueId());
        }
        // 4.9 commits the offsets of the application by this class only from 4.9.5 on.
        consumer.commitSync(offsets, true);
        until("the offsets of the application are committed", () -> {
            for (MessageQueue queue : queues) {
                if (consumer.committed(queue) != 5L + queue.getQueueId()) {
                    return false;
                }
            }
            return true;
        });
        return "120 messages";
    }

    /**
     * A seek interrupts the pull of its queue. From 5.2 on a thread that is interrupted before it
     * sends closes the connection that all threads use (NettyRemotingAbstract.invoke0), and with it
     * fails what the next seek asks the broker for. Then the application seeks again.
     */
    private static void seeking(Seek seek) throws Exception {
        until("no connection is closed by an interrupted pull", () -> {
            try {
                seek.run();
                return true;
            } catch (MQClientException problem) {
                if (problem.getCause() instanceof RemotingException) {
                    return false;
                }
                throw problem;
            }
        });
    }

    private static int polled(DefaultLitePullConsumer consumer, Set<String> came) {
        consumer.poll(100).forEach(message -> came.add(text(message)));
        return came.size();
    }

    private static DefaultLitePullConsumer lite(String topic) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(topic);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(10);
        ends.get().add(consumer::shutdown);
        return consumer;
    }

    // -- namespaces, traces -----------------------------------------------------------------------

    /** There are five messages of another client in the topic. */
    private static String namespace(String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic);
        producer.setNamespace("space");
        started(producer);
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.setNamespace("space");
        consumer.subscribe(topic, "*");
        Map<String, Integer> came = new ConcurrentHashMap<>();
        Set<String> topics = new ConcurrentSkipListSet<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                topics.add(message.getTopic());
                came.put(text(message), message.getReconsumeTimes());
            }
            context.setDelayLevelWhenNextConsume(1);
            return messages.get(0).getReconsumeTimes() == 0
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        started(consumer);
        for (int number = 0; number < 10; number++) {
            SendResult result = producer.send(new Message(topic, bytes("n" + number)));
            require(result.getMessageQueue().getTopic().equals(topic), result);
        }
        until("all come again in the namespace", () -> came.size() == 15 && came.values().stream().allMatch(times -> times == 1));
        require(topics.equals(Set.of(topic)), topics);
        return "15 messages";
    }

    /** Since 5.0: names are not wrapped, requests have the fields ns and nsd. */
    private static String namespaceV2(String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic);
        DefaultMQPushConsumer consumer = consumer(topic);
        java.lang.reflect.Method set = ClientConfig.class.getMethod("setNamespaceV2", String.class);
        set.invoke(producer, "space-v2");
        set.invoke(consumer, "space-v2");
        started(producer);
        Set<String> came = new ConcurrentSkipListSet<>();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> came.add(text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        started(consumer);
        for (int number = 0; number < 10; number++) {
            producer.send(new Message(topic, bytes("n" + number)));
        }
        until("all come", () -> came.size() == 10);
        return "10 messages";
    }

    private static String trace(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic, null, true, null));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic, null, new AllocateMessageQueueAveragely(), true, null);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        started(consumer);
        SendResult result = producer.send(new Message(topic, "tag", "trace-key", bytes("x")));
        // A client of 4.9 that ends may lose traces: it does not wait until they are sent.
        until("all is traced", () -> {
            String traces = String.join("", found(producer, "RMQ_SYS_TRACE_TOPIC", result.getMsgId()));
            return traces.contains("Pub\001") && traces.contains("SubAfter\001");
        });
        return result.getMsgId();
    }

    // -- what they share --------------------------------------------------------------------------

    private static Set<String> sentTo(String topic, int count) throws Exception {
        return sentTo(topic, "m", count);
    }

    /** Round robin over four queues. */
    private static Set<String> sentTo(String topic, String name, int count) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(topic + "-senders"));
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        require(queues.size() == 4, "queues: " + queues);
        Set<String> sent = new TreeSet<>();
        for (int number = 0; number < count; number++) {
            String body = name + number;
            producer.send(new Message(topic, bytes(body)), queues.get(number % 4));
            sent.add(body);
        }
        producer.shutdown();
        return sent;
    }

    /** The bodies that a new group consumes, once there are so many of them. */
    private static Set<String> consumed(String topic, String group, String tags, int count) throws Exception {
        Set<String> came = new ConcurrentSkipListSet<>();
        consumer(topic, group, tags, (messages, context) -> {
            messages.forEach(message -> came.add(text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        until(count + " messages come", () -> came.size() >= count);
        return came;
    }

    private static void consumer(String topic, String group, String tags, MessageListenerConcurrently listener)
        throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener(listener);
        started(consumer);
    }

    private static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void started(DefaultMQPushConsumer consumer) throws Exception {
        consumer.setNamesrvAddr(nameserver);
        consumer.setHeartbeatBrokerInterval(1000); // see interop_clients.py, SOON
        consumer.start();
        ends.get().add(consumer::shutdown);
    }

    private static <P extends DefaultMQProducer> P started(P producer) throws Exception {
        producer.setNamesrvAddr(nameserver);
        producer.start();
        ends.get().add(producer::shutdown);
        return producer;
    }

    private static void until(String what, Check check) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!check.holds()) {
            require(System.currentTimeMillis() < end, "not in " + PATIENCE_MS + " ms: " + what);
            Thread.sleep(10);
        }
    }

    private static void same(Set<String> expected, Set<String> came) {
        Set<String> missing = new TreeSet<>(expected);
        missing.removeAll(came);
        Set<String> strange = new TreeSet<>(came);
        strange.removeAll(expected);
        require(missing.isEmpty() && strange.isEmpty(), "missing " + missing + ", strange " + strange);
    }

    private static void require(boolean holds, Object what) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(what));
        }
    }

    private static byte[] bytes(String body) {
        return body.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
