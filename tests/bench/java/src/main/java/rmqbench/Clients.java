package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Clients whose caller has the loop: a consumer that is polled, and producers. */
final class Clients {
    private static final long DEADLINE_NS = 120_000_000_000L;
    private static final int POLL_MS = 1_000;
    private static final int SEND_MS = 30_000;

    void addTo(Map<String, Main.Command> commands) {
        commands.put("client.litePull", this::litePull);
        commands.put("client.sendBatches", this::sendBatches);
        commands.put("client.sendSingles", this::sendSingles);
    }

    /** {namesrv, group, topic, count, pullBatch}: all queues from their beginning; rate from the call to the last message. */
    private JSONObject litePull(JSONObject fields) throws Exception {
        int count = fields.getIntValue("count");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(fields.getString("group"));
        consumer.setNamesrvAddr(fields.getString("namesrv"));
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(fields.getIntValue("pullBatch"));
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(fields.getString("topic"));
            long start = System.nanoTime();
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seek(queue, 0);
            }
            int seen = 0;
            while (seen < count) {
                seen += consumer.poll(POLL_MS).size();
                if (System.nanoTime() - start > DEADLINE_NS) {
                    throw new IllegalStateException(seen + " of " + count + " messages came");
                }
            }
            return JSONObject.of("rate", seen / Figures.secondsSince(start));
        } finally {
            consumer.shutdown();
        }
    }

    /** {namesrv, group, topic, count, bodyBytes, batch}: one thread, so many messages in a request. */
    private JSONObject sendBatches(JSONObject fields) throws Exception {
        int count = fields.getIntValue("count");
        int batch = fields.getIntValue("batch");
        Messages messages = new Messages(fields);
        DefaultMQProducer producer = producer(fields);
        try {
            long start = System.nanoTime();
            for (int number = 0; number < count; number += batch) {
                List<Message> members = new ArrayList<>(batch);
                for (int at = number; at < Math.min(number + batch, count); at++) {
                    members.add(messages.unsent(at));
                }
                producer.send(members);
            }
            return JSONObject.of("rate", count / Figures.secondsSince(start));
        } finally {
            producer.shutdown();
        }
    }

    /** {namesrv, group, topic, count, bodyBytes, threads, status}: one message in a request; each must get `status`, if given. */
    private JSONObject sendSingles(JSONObject fields) throws Exception {
        int count = fields.getIntValue("count");
        int threads = fields.getIntValue("threads");
        String wanted = fields.getString("status");
        Messages messages = new Messages(fields);
        DefaultMQProducer producer = producer(fields);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        AtomicInteger next = new AtomicInteger();
        Callable<Void> sender = () -> {
            for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                SendResult result = producer.send(messages.unsent(number));
                if (wanted != null && !wanted.equals(result.getSendStatus().name())) {
                    throw new IllegalStateException("a send got " + result.getSendStatus());
                }
            }
            return null;
        };
        List<Callable<Void>> senders = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            senders.add(sender);
        }
        try {
            long start = System.nanoTime();
            for (Future<Void> sent : pool.invokeAll(senders)) {
                sent.get();
            }
            return JSONObject.of("rate", count / Figures.secondsSince(start));
        } finally {
            pool.shutdown();
            producer.shutdown();
        }
    }

    private static DefaultMQProducer producer(JSONObject fields) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(fields.getString("group"));
        producer.setNamesrvAddr(fields.getString("namesrv"));
        producer.setSendMsgTimeout(SEND_MS); // a measurement on a busy machine must not end by it
        producer.start();
        return producer;
    }
}
