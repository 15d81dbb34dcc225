package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Clients of a broker on loopback. */
final class Consumers {
    private static final int DEADLINE_S = 120;

    private final List<MessageExt> failed = new ArrayList<>();

    void addTo(Map<String, Main.Command> commands) {
        commands.put("client.push", this::push);
        commands.put("client.take", this::take);
        commands.put("client.sendBack", this::sendBack);
    }

    /** {namesrv, group, topic, count, pullBatch, consumeBatch}: rate from the first message that the listener sees to the last. */
    private JSONObject push(JSONObject fields) throws Exception {
        int count = fields.getIntValue("count");
        AtomicLong firstNs = new AtomicLong();
        AtomicLong lastNs = new AtomicLong();
        AtomicInteger seen = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(fields, (messages, context) -> {
            if (firstNs.get() == 0) {
                firstNs.compareAndSet(0, System.nanoTime());
            }
            if (seen.addAndGet(messages.size()) == count) {
                lastNs.set(System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await(done, seen, count);
        consumer.shutdown();
        return JSONObject.of("rate", count / ((lastNs.get() - firstNs.get()) / 1e9));
    }

    /** {namesrv, group, topic, count, pullBatch, consumeBatch}: keep so many messages of the topic, to be sent back later. */
    private JSONObject take(JSONObject fields) throws Exception {
        int count = fields.getIntValue("count");
        Queue<MessageExt> taken = new ConcurrentLinkedQueue<>();
        AtomicInteger seen = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(fields, (messages, context) -> {
            taken.addAll(messages);
            if (seen.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await(done, seen, count);
        consumer.shutdown();
        failed.clear();
        failed.addAll(taken);
        return new JSONObject();
    }

    /** {namesrv, group, topic, broker, threads, delayLevel, pullBatch, consumeBatch}: what was taken, sent back by so many threads. */
    private JSONObject sendBack(JSONObject fields) throws Exception {
        DefaultMQPushConsumer consumer = consumer(fields, (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        int threads = fields.getIntValue("threads");
        int level = fields.getIntValue("delayLevel");
        String broker = fields.getString("broker");
        AtomicInteger next = new AtomicInteger();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        Callable<Void> sender = () -> {
            for (int number = next.getAndIncrement(); number < failed.size(); number = next.getAndIncrement()) {
                consumer.sendMessageBack(failed.get(number), level, broker);
            }
            return null;
        };
        List<Callable<Void>> senders = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            senders.add(sender);
        }
        long start = System.nanoTime();
        for (Future<Void> sent : pool.invokeAll(senders)) {
            sent.get();
        }
        double seconds = Figures.secondsSince(start);
        pool.shutdown();
        consumer.shutdown();
        return JSONObject.of("rate", failed.size() / seconds);
    }

    private static DefaultMQPushConsumer consumer(JSONObject fields, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(fields.getString("group"));
        consumer.setNamesrvAddr(fields.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(fields.getIntValue("pullBatch"));
        consumer.setConsumeMessageBatchMaxSize(fields.getIntValue("consumeBatch"));
        consumer.setPullThresholdForQueue(10_000);
        consumer.subscribe(fields.getString("topic"), "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private static void await(CountDownLatch done, AtomicInteger seen, int count) throws InterruptedException {
        if (!done.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(seen + " of " + count + " messages came");
        }
    }
}
