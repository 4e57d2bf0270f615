import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's Java client under load; see rocketmq.py. Told by lines:
 *
 *     send TOPIC COUNT BYTES BATCH AHEAD KEYED   batches of so many messages, AHEAD of them under way
 *     single TOPIC COUNT BYTES SENDERS           synchronous sends of so many threads
 *     consume TOPIC COUNT BATCH TOUCH            a push consumer
 *     poll TOPIC COUNT MOST                      a lite pull consumer
 *     paced TOPIC COUNT BYTES RATE WARM          sends at a rate, and a push consumer
 *
 * A line is answered by `ok SECONDS`, with three quantiles of times in microseconds where there are
 * any (50, 99 and 99.9 %), or by `failed WHY`.
 * The time of a consumer is from its first message on.
 */
public class RocketLoad {
    static final long WAIT_S = 120;
    static String nameserver;
    static DefaultMQProducer producer;

    static String send(String topic, int count, int bytes, int batch, int ahead, boolean keyed) throws Exception {
        byte[] body = random(bytes);
        ConcurrentLinkedQueue<Throwable> problems = new ConcurrentLinkedQueue<>();
        Semaphore free = new Semaphore(ahead);
        long begin = System.nanoTime();
        for (int sent = 0; sent < count && problems.isEmpty(); sent += batch) {
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                Message message = new Message(topic, body);
                if (keyed) {
                    message.setTags("A");
                    message.setKeys("order-" + (sent + i));
                }
                messages.add(message);
            }
            if (ahead == 1) {
                check(producer.send(messages));
                continue;
            }
            free.acquire();
            producer.send(messages, new SendCallback() {
                public void onSuccess(SendResult result) {
                    free.release();
                    if (result.getSendStatus() != SendStatus.SEND_OK) problems.add(new IllegalStateException(result.toString()));
                }

                public void onException(Throwable error) {
                    problems.add(error);
                    free.release();
                }
            });
        }
        free.acquire(ahead);
        long took = System.nanoTime() - begin;
        if (!problems.isEmpty()) throw new IllegalStateException(problems.peek());
        stored(topic, count);
        return String.valueOf(took / 1e9);
    }

    static String single(String topic, int count, int bytes, int senders) throws Exception {
        byte[] body = random(bytes);
        long[] times = new long[count / senders * senders];
        ConcurrentLinkedQueue<Throwable> problems = new ConcurrentLinkedQueue<>();
        CountDownLatch done = new CountDownLatch(senders);
        long begin = System.nanoTime();
        for (int sender = 0; sender < senders; sender++) {
            int first = count / senders * sender;
            Thread thread = new Thread(() -> {
                try {
                    for (int i = first; i < first + count / senders; i++) {
                        long start = System.nanoTime();
                        check(producer.send(new Message(topic, body)));
                        times[i] = System.nanoTime() - start;
                    }
                } catch (Throwable error) {
                    problems.add(error);
                }
                done.countDown();
            });
            thread.start();
        }
        done.await();
        long took = System.nanoTime() - begin;
        if (!problems.isEmpty()) throw new IllegalStateException(problems.peek());
        stored(topic, times.length);
        return took / 1e9 + quantiles(times);
    }

    static String consume(String topic, int count, int batch, boolean touch) throws Exception {
        AtomicLong seen = new AtomicLong(), touched = new AtomicLong(), first = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("g" + UUID.randomUUID());
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.setPullBatchSize(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (first.get() == 0) first.compareAndSet(0, System.nanoTime());
            long sum = 0;
            for (MessageExt message : messages) {
                sum += message.getBody().length;
                if (touch) sum += message.getKeys().length() + message.getProperties().size();
            }
            touched.addAndGet(sum);
            if (seen.addAndGet(messages.size()) >= count) done.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = done.await(WAIT_S, TimeUnit.SECONDS);
        long took = System.nanoTime() - first.get();
        consumer.shutdown();
        if (!all || seen.get() != count) throw new IllegalStateException(seen + " messages of " + count);
        return String.valueOf(took / 1e9);
    }

    static String poll(String topic, int count, int most) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("g" + UUID.randomUUID());
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(most);
        consumer.subscribe(topic, "*");
        long first = 0, deadline = System.nanoTime() + WAIT_S * 1_000_000_000L;
        consumer.start();
        int seen = 0;
        while (seen < count && System.nanoTime() < deadline) {
            int found = consumer.poll(1000).size();
            if (seen == 0) first = System.nanoTime();
            seen += found;
        }
        long took = System.nanoTime() - first;
        consumer.shutdown();
        if (seen != count) throw new IllegalStateException(seen + " messages of " + count);
        return String.valueOf(took / 1e9);
    }

    static String paced(String topic, int count, int bytes, int rate, int warm) throws Exception {
        long[] times = new long[count];
        AtomicLong seen = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        ConcurrentLinkedQueue<Throwable> problems = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("g" + UUID.randomUUID());
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                java.nio.ByteBuffer head = java.nio.ByteBuffer.wrap(message.getBody());
                long due = head.getLong();
                times[head.getInt()] = now - due;
                if (seen.incrementAndGet() == count) done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(3000);  // it has its queues
        long begin = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long due = begin + i * 1_000_000_000L / rate;
            long wait;
            while ((wait = due - System.nanoTime()) > 0) LockSupport.parkNanos(wait);
            byte[] body = new byte[bytes];
            java.nio.ByteBuffer.wrap(body).putLong(due).putInt(i);
            producer.send(new Message(topic, body), new SendCallback() {
                public void onSuccess(SendResult result) { }

                public void onException(Throwable error) { problems.add(error); }
            });
        }
        boolean all = done.await(WAIT_S, TimeUnit.SECONDS);
        long took = System.nanoTime() - begin;
        consumer.shutdown();
        if (!problems.isEmpty()) throw new IllegalStateException(problems.peek());
        if (!all || seen.get() != count) throw new IllegalStateException(seen + " messages of " + count);
        return took / 1e9 + quantiles(Arrays.copyOfRange(times, warm, count));
    }

    static void stored(String topic, long count) throws Exception {
        long stored, deadline = System.nanoTime() + WAIT_S * 1_000_000_000L;
        do {  // its queues follow its log
            stored = 0;
            for (MessageQueue queue : producer.fetchPublishMessageQueues(topic))
                stored += producer.getDefaultMQProducerImpl().maxOffset(queue);
            if (stored < count) Thread.sleep(10);
        } while (stored < count && System.nanoTime() < deadline);
        if (stored != count) throw new IllegalStateException("sent " + count + " messages, stored are " + stored);
    }

    static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
    }

    static byte[] random(int bytes) {
        byte[] body = new byte[bytes];
        new Random().nextBytes(body);
        return body;
    }

    static String quantiles(long[] times) {
        Arrays.sort(times);
        StringBuilder text = new StringBuilder();
        for (double share : new double[] {0.5, 0.99, 0.999})
            text.append(' ').append(times[(int) Math.min(times.length - 1, share * times.length)] / 1e3);
        return text.toString();
    }

    public static void main(String[] arguments) throws Exception {
        nameserver = arguments[0];
        producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(nameserver);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] w = line.split(" ");
            int[] n = new int[w.length];
            for (int i = 2; i < w.length; i++) n[i] = Integer.parseInt(w[i]);
            try {
                String found;
                switch (w[0]) {
                    case "send": found = send(w[1], n[2], n[3], n[4], n[5], n[6] == 1); break;
                    case "single": found = single(w[1], n[2], n[3], n[4]); break;
                    case "consume": found = consume(w[1], n[2], n[3], n[4] == 1); break;
                    case "poll": found = poll(w[1], n[2], n[3]); break;
                    default: found = paced(w[1], n[2], n[3], n[4], n[5]);
                }
                System.out.println("ok " + found);
            } catch (Throwable error) {
                System.out.println("failed " + error);
            }
        }
        System.exit(0);
    }
}
