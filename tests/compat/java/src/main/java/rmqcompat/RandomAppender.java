package rmqcompat;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts messages whose every field is drawn from a seed, and says of each what was put. */
final class RandomAppender {
    private static final int QUEUES = 2;
    private static final int[][] ALPHABETS = {{0x20, 0x7e}, {0xa1, 0x17f}, {0x410, 0x44f}, {0x4e00, 0x9fa5}, {0x1f300, 0x1f5ff}};
    private static final CompressionType[] CODECS = {CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD};
    private static final int[] TRANSACTIONS = {
        MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE, MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};

    private final DefaultMessageStore store;
    private final Random random;
    private final List<String> topics;
    private int number;

    RandomAppender(DefaultMessageStore store, long seed, List<String> topics) {
        this.store = store;
        this.random = new Random(seed);
        this.topics = topics;
    }

    void run(int count) throws Exception {
        while (number < count) {
            if (once(40)) {
                batch(Math.min(2 + random.nextInt(20), count - number));
            } else {
                single();
            }
        }
    }

    private boolean once(int in) {
        return random.nextInt(in) == 0;
    }

    private void single() throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        byte[] body = body(once(300) ? 200_000 : 8_000);
        message.setTopic(topics.get(random.nextInt(topics.size())));
        message.setQueueId(random.nextInt(QUEUES));
        message.setBody(body);
        message.setFlag(random.nextInt());
        message.setReconsumeTimes(random.nextInt(17));
        message.setBornTimestamp(System.currentTimeMillis() - random.nextInt(1 << 30));
        message.setBornHost(new InetSocketAddress("10.1." + random.nextInt(256) + "." + random.nextInt(256), random.nextInt(65536)));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        if (once(8)) {
            message.setBornHost(new InetSocketAddress("fe80:0:0:0:" + Integer.toHexString(random.nextInt(65536)) + ":0:0:1", 51234));
            message.setBornHostV6Flag();
        }
        if (once(15)) {
            message.setStoreHost(new InetSocketAddress("fd00:0:0:0:0:0:0:" + Integer.toHexString(1 + random.nextInt(65535)), 10911));
            message.setStoreHostAddressV6Flag();
        }
        if (once(5)) {
            CompressionType codec = CODECS[random.nextInt(CODECS.length)];
            message.setBody(CompressorFactory.getCompressor(codec).compress(body, 1 + random.nextInt(9)));
            message.setSysFlag(message.getSysFlag() | MessageSysFlag.COMPRESSED_FLAG | codec.getCompressionFlag());
        }
        decorate(message);
        if (once(12)) {
            message.setSysFlag(message.getSysFlag() | TRANSACTIONS[random.nextInt(TRANSACTIONS.length)]);
            message.setPreparedTransactionOffset(random.nextInt(1 << 30));
        } else if (once(12)) { // as HookUtils#transformDelayLevelMessage leaves it
            int level = 1 + random.nextInt(18);
            message.setDelayTimeLevel(level);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, message.getTopic());
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_QUEUE_ID, String.valueOf(message.getQueueId()));
            message.setTopic(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC);
            message.setQueueId(level - 1);
        }
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = store.putMessage(message);
        answer(result, message.getTopic(), message.getQueueId(), 0, message, body, message);
    }

    private void batch(int size) throws Exception {
        List<Message> members = new ArrayList<>();
        String topic = topics.get(random.nextInt(topics.size()));
        for (int i = 0; i < size; i++) {
            Message member = new Message(topic, body(2_000));
            member.setFlag(random.nextInt());
            decorate(member);
            members.add(member);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(topic);
        batch.setQueueId(random.nextInt(QUEUES));
        batch.setBody(MessageDecoder.encodeMessages(members));
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(new InetSocketAddress("192.168.1.7", 51234));
        batch.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        MessageAccessor.setProperties(batch, new LinkedHashMap<>());
        PutMessageResult result = store.putMessages(batch);
        for (int i = 0; i < size; i++) {
            answer(result, topic, batch.getQueueId(), i, members.get(i), members.get(i).getBody(), batch);
        }
    }

    private void decorate(Message message) {
        if (!once(4)) {
            message.setTags(text(1 + random.nextInt(12)).replace("||", "__"));
        }
        if (!once(4)) {
            List<String> keys = new ArrayList<>();
            for (int i = random.nextInt(4); i >= 0; i--) {
                keys.add(text(1 + random.nextInt(20)).replace(' ', '_'));
            }
            message.setKeys(String.join(" ", keys));
        }
        for (int i = random.nextInt(6); i > 0; i--) {
            message.putUserProperty("p" + text(random.nextInt(10)), "v" + text(random.nextInt(once(50) ? 2_000 : 60)));
        }
        if (!once(20)) {
            MessageClientIDSetter.setUniqID(message);
        }
    }

    /** Of any length up to the limit, short ones as often as long ones; noise, or text that compresses. */
    private byte[] body(int limit) {
        byte[] bytes = new byte[(int) Math.pow(limit, random.nextDouble()) - 1];
        if (once(2)) {
            random.nextBytes(bytes);
        } else {
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) ("RocketMQ \u0001\u0002\u0000".charAt(i / 7 % 12));
            }
        }
        return bytes;
    }

    private String text(int length) {
        StringBuilder text = new StringBuilder();
        int[] alphabet = ALPHABETS[random.nextInt(ALPHABETS.length)];
        for (int i = 0; i < length; i++) {
            text.appendCodePoint(alphabet[0] + random.nextInt(alphabet[1] - alphabet[0] + 1));
        }
        return text.toString();
    }

    private void answer(PutMessageResult result, String topic, int queueId, int member, Message message, byte[] body, Message outer)
        throws Exception {
        MessageExtBrokerInner frame = (MessageExtBrokerInner) outer;
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("kind", "put");
        answer.put("number", number++);
        answer.put("status", result.getPutMessageStatus().name());
        answer.put("topic", topic);
        answer.put("queueId", queueId);
        answer.put("queueOffset", result.getAppendMessageResult().getLogicsOffset() + member);
        answer.put("commitLogOffset", result.getAppendMessageResult().getWroteOffset());
        answer.put("isBatch", message != outer);
        answer.put("transaction", MessageSysFlag.getTransactionValue(frame.getSysFlag()));
        answer.put("flag", message.getFlag());
        answer.put("reconsumeTimes", frame.getReconsumeTimes());
        answer.put("bornTimestamp", frame.getBornTimestamp());
        answer.put("tags", message.getTags());
        answer.put("keys", message.getKeys());
        answer.put("properties", new TreeMap<>(message.getProperties()));
        answer.put("bodySha256", Dump.sha256(body));
        Main.answer(answer);
    }
}
