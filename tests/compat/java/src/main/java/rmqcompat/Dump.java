package rmqcompat;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

/** Prints everything that a recovered store holds, through its queues and its index. */
final class Dump {
    private static final int QUERY_MESSAGES = 64; // maxMsgsNumBatch: RocketMQ gives no more for one question

    private final DefaultMessageStore store;
    private final List<Map<String, Object>> questions;

    Dump(DefaultMessageStore store, List<Map<String, Object>> questions) {
        this.store = store;
        this.questions = questions;
    }

    void run() throws Exception {
        Map<String, Object> log = fields("log");
        log.put("minPhyOffset", store.getMinPhyOffset());
        log.put("maxPhyOffset", store.getMaxPhyOffset());
        Main.answer(log);
        for (var topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (ConsumeQueueInterface queue : new TreeMap<>(topic.getValue()).values()) {
                queue(queue);
            }
        }
        if (!questions.isEmpty()) {
            store.start(); // a store that is not started answers no question
        }
        for (Map<String, Object> question : questions) {
            Main.answer(question.containsKey("key") ? byKey(question) : byTime(question));
        }
    }

    private void queue(ConsumeQueueInterface queue) throws Exception {
        Map<String, Object> answer = fields("queue");
        answer.put("topic", queue.getTopic());
        answer.put("queueId", queue.getQueueId());
        answer.put("minOffset", queue.getMinOffsetInQueue());
        answer.put("maxOffset", queue.getMaxOffsetInQueue());
        Main.answer(answer);
        for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue(); offset++) {
            CqUnit entry = queue.get(offset);
            SelectMappedBufferResult frame = store.selectOneMessageByOffset(entry.getPos(), entry.getSize());
            message(entry, frame.getByteBuffer());
            frame.release();
        }
    }

    private void message(CqUnit entry, ByteBuffer frame) throws Exception {
        MessageExt stored = MessageDecoder.decode(frame.duplicate(), true, false);
        MessageClientExt seen = (MessageClientExt) MessageDecoder.clientDecode(frame.duplicate(), true);
        Map<String, Object> answer = fields("message");
        answer.put("topic", seen.getTopic());
        answer.put("queueId", seen.getQueueId());
        answer.put("entryQueueOffset", entry.getQueueOffset());
        answer.put("queueOffset", seen.getQueueOffset());
        answer.put("commitLogOffset", seen.getCommitLogOffset());
        answer.put("storeSize", seen.getStoreSize());
        answer.put("tagsCode", entry.getTagsCode());
        answer.put("frameOk", store.checkMessageAndReturnSize(frame.duplicate(), true, false, true).isSuccess());
        answer.put("msgId", seen.getMsgId());
        answer.put("offsetMsgId", seen.getOffsetMsgId());
        answer.put("flag", seen.getFlag());
        answer.put("sysFlag", seen.getSysFlag());
        answer.put("storedSysFlag", stored.getSysFlag());
        answer.put("bornTimestamp", seen.getBornTimestamp());
        answer.put("bornHost", host(seen.getBornHost()));
        answer.put("storeTimestamp", seen.getStoreTimestamp());
        answer.put("storeHost", host(seen.getStoreHost()));
        answer.put("reconsumeTimes", seen.getReconsumeTimes());
        answer.put("preparedTransactionOffset", seen.getPreparedTransactionOffset());
        answer.put("bodyCRC", stored.getBodyCRC());
        answer.put("bodyLength", body(seen).length);
        answer.put("bodySha256", sha256(body(seen)));
        answer.put("storedBodySha256", sha256(body(stored)));
        answer.put("tags", seen.getTags());
        answer.put("keys", seen.getKeys());
        answer.put("properties", stored.getProperties() == null ? Map.of() : new TreeMap<>(stored.getProperties()));
        Main.answer(answer);
    }

    private Map<String, Object> byKey(Map<String, Object> question) {
        String topic = (String) question.get("topic");
        String key = (String) question.get("key");
        QueryMessageResult result = store.queryMessage(topic, key, number(question, "maxNum", QUERY_MESSAGES).intValue(),
            number(question, "begin", 0).longValue(), number(question, "end", Long.MAX_VALUE).longValue());
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer frame : result.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(frame.duplicate(), false, false).getCommitLogOffset());
        }
        result.release();
        Map<String, Object> answer = fields("query");
        answer.put("topic", topic);
        answer.put("key", key);
        answer.put("commitLogOffsets", offsets);
        return answer;
    }

    private Map<String, Object> byTime(Map<String, Object> question) {
        Map<String, Object> answer = fields("time");
        answer.putAll(question);
        answer.put("offset", store.getOffsetInQueueByTime((String) question.get("topic"), number(question, "queueId", 0).intValue(),
            number(question, "timestamp", 0).longValue(), BoundaryType.valueOf((String) question.get("boundary"))));
        return answer;
    }

    private static Map<String, Object> fields(String kind) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("kind", kind);
        return fields;
    }

    private static byte[] body(MessageExt message) {
        return message.getBody() == null ? new byte[0] : message.getBody(); // the decoder's way to say that it is empty
    }

    private static Number number(Map<String, Object> question, String name, Number otherwise) {
        return (Number) question.getOrDefault(name, otherwise);
    }

    private static String host(SocketAddress address) {
        InetSocketAddress internet = (InetSocketAddress) address;
        String text = internet.getAddress().getHostAddress();
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + internet.getPort();
    }

    static String sha256(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
