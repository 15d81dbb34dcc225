package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** One store in this process, without a broker. All messages are of one topic and in its queue 0. */
final class StoreAlone {
    private static final String GROUP = "cg_bench";
    private static final long DEADLINE_NS = 120_000_000_000L;

    private DefaultMessageStore store;

    void addTo(Map<String, Main.Command> commands) {
        commands.put("store.open", this::open);
        commands.put("store.close", this::close);
        commands.put("store.put", this::put);
        commands.put("store.putBatches", this::putBatches);
        commands.put("store.putTimes", this::putTimes);
        commands.put("store.read", this::read);
        commands.put("store.query", this::query);
    }

    /** {directory, settings}: settings are those of a broker.conf. */
    private JSONObject open(JSONObject fields) throws Exception {
        store = loaded(fields);
        store.start();
        return new JSONObject();
    }

    static DefaultMessageStore loaded(JSONObject fields) throws Exception {
        MessageStoreConfig config = storeConfig(fields);
        BrokerConfig brokerConfig = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { }, brokerConfig, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() refused " + fields);
        }
        return store;
    }

    static MessageStoreConfig storeConfig(JSONObject fields) {
        Properties properties = new Properties();
        fields.getJSONObject("settings").forEach((name, value) -> properties.setProperty(name, value.toString()));
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(fields.getString("directory"));
        config.setStorePathCommitLog(fields.getString("directory") + "/commitlog");
        config.setHaListenPort(0); // any free port
        return config;
    }

    private JSONObject close(JSONObject fields) {
        store.shutdown();
        store = null;
        return new JSONObject();
    }

    /** {topic, bodyBytes, count}: one by one; the property strings are there before, as in requests that came in. */
    private JSONObject put(JSONObject fields) throws Exception {
        Messages messages = new Messages(fields);
        int count = fields.getIntValue("count");
        String[] properties = propertyStrings(messages, count);
        long start = System.nanoTime();
        for (int number = 0; number < count; number++) {
            check(store.putMessage(messages.single(number, 0, properties[number])));
        }
        return rates(count, start);
    }

    /** {topic, bodyBytes, count, batch}: batches are built and encoded as a producer does, which counts. */
    private JSONObject putBatches(JSONObject fields) throws Exception {
        Messages messages = new Messages(fields);
        int count = fields.getIntValue("count");
        int size = fields.getIntValue("batch");
        long start = System.nanoTime();
        for (int number = 0; number < count; number += size) {
            check(store.putMessages(messages.batch(number, Math.min(size, count - number), 0)));
        }
        return rates(count, start);
    }

    private JSONObject rates(int count, long start) throws InterruptedException {
        double putSeconds = Figures.secondsSince(start);
        awaitDispatch(store);
        return JSONObject.of("putRate", count / putSeconds, "caughtUpRate", count / Figures.secondsSince(start));
    }

    /** {topic, bodyBytes, count, threads}: the times of `count` puts by each of so many threads, and what they make together. */
    private JSONObject putTimes(JSONObject fields) throws Exception {
        Messages messages = new Messages(fields);
        int count = fields.getIntValue("count");
        int threads = fields.getIntValue("threads");
        String[] properties = propertyStrings(messages, count);
        long[] times = new long[count * threads];
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Callable<Void>> writers = new ArrayList<>();
        for (int writer = 0; writer < threads; writer++) {
            int first = writer * count;
            writers.add(() -> {
                for (int number = 0; number < count; number++) {
                    long begin = System.nanoTime();
                    check(store.putMessage(messages.single(number, 0, properties[number])));
                    times[first + number] = System.nanoTime() - begin;
                }
                return null;
            });
        }
        long start = System.nanoTime();
        for (Future<Void> done : pool.invokeAll(writers)) {
            done.get();
        }
        double seconds = Figures.secondsSince(start);
        pool.shutdown();
        JSONObject answer = Figures.ofTimes(times);
        answer.put("rate", times.length / seconds);
        return answer;
    }

    /** {topic, batch}: the whole queue in order, every frame decoded. */
    private JSONObject read(JSONObject fields) throws Exception {
        String topic = fields.getString("topic");
        int batch = fields.getIntValue("batch");
        awaitDispatch(store);
        long end = store.getMaxOffsetInQueue(topic, 0);
        long bodyBytes = 0;
        long start = System.nanoTime();
        for (long offset = 0; offset < end; ) {
            GetMessageResult result = store.getMessage(GROUP, topic, 0, offset, batch, null);
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                bodyBytes += MessageDecoder.decode(buffer, true, false).getBody().length;
            }
            offset += result.getMessageCount();
            result.release();
        }
        double seconds = Figures.secondsSince(start);
        return JSONObject.of("rate", end / seconds, "count", end, "bodyBytes", bodyBytes);
    }

    /** {topic, count, by}: so many look-ups one at a time, of messages drawn at random, by "key", "uniqueKey" or "offset". */
    private JSONObject query(JSONObject fields) throws Exception {
        String topic = fields.getString("topic");
        int count = fields.getIntValue("count");
        String by = fields.getString("by");
        awaitDispatch(store);
        long end = store.getMaxOffsetInQueue(topic, 0);
        Random random = new Random();
        long[] offsets = new long[count];
        String[] keys = new String[count];
        for (int number = 0; number < count; number++) {
            offsets[number] = random.nextLong(end);
            MessageExt wanted = messageAt(topic, offsets[number]);
            keys[number] = by.equals("key") ? wanted.getKeys() : wanted.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        }
        long[] times = new long[count];
        long found = 0;
        long now = System.currentTimeMillis();
        for (int number = 0; number < count; number++) {
            long begin = System.nanoTime();
            if (by.equals("offset")) {
                found += messageAt(topic, offsets[number]).getQueueOffset() == offsets[number] ? 1 : 0;
            } else {
                QueryMessageResult result = store.queryMessage(topic, keys[number], 32, 0, now);
                found += result.getMessageBufferList().isEmpty() ? 0 : 1;
                result.release();
            }
            times[number] = System.nanoTime() - begin;
        }
        if (found != count) {
            throw new IllegalStateException(found + " of " + count + " messages were found");
        }
        return Figures.ofTimes(times);
    }

    private MessageExt messageAt(String topic, long offset) {
        GetMessageResult result = store.getMessage(GROUP, topic, 0, offset, 1, null);
        MessageExt message = MessageDecoder.decode(result.getMessageBufferList().get(0), true, false);
        result.release();
        return message;
    }

    private static String[] propertyStrings(Messages messages, int count) {
        String[] properties = new String[count];
        for (int number = 0; number < count; number++) {
            properties[number] = messages.properties(number);
        }
        return properties;
    }

    static void check(PutMessageResult result) {
        if (!result.isOk()) {
            throw new IllegalStateException("a put was answered with " + result.getPutMessageStatus());
        }
    }

    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long start = System.nanoTime();
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() - start > DEADLINE_NS) {
                throw new IllegalStateException("the dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(1);
        }
    }
}
