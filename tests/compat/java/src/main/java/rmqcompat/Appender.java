package rmqcompat;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts messages of every kind that a broker stores: the kind is the message's number modulo KINDS. */
final class Appender {
    private static final int KINDS = 13;
    private static final int QUEUES = 2;
    private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("192.168.1.7", 51234);
    private static final InetSocketAddress BORN_HOST_V6 = new InetSocketAddress("fe80:0:0:0:0:0:0:1234", 51234);

    private final DefaultMessageStore store;
    private final Random random = new Random(7);

    Appender(DefaultMessageStore store) {
        this.store = store;
    }

    void run(int count, List<String> topics) throws Exception {
        for (int number = 0; number < count; number++) {
            // Queues change slowest, so that each topic and queue gets each kind.
            String topic = topics.get(number / KINDS % topics.size());
            int queueId = number / KINDS / topics.size() % QUEUES;
            MessageExtBrokerInner message = message(number, topic, queueId);
            result(number, message.getTopic(), queueId, store.putMessage(message));
        }
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            result(count + queueId, topics.get(0), queueId, store.putMessages(batch(topics.get(0), queueId)));
        }
    }

    private MessageExtBrokerInner message(int number, String topic, int queueId) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(("message " + number).getBytes(StandardCharsets.UTF_8));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        switch (number % KINDS) {
            case 0 -> {
                message.setTags("TagA");
                message.setKeys("key-" + number);
            }
            case 1 -> {
                message.setBody("中文 Grüße Привет 😀".getBytes(StandardCharsets.UTF_8));
                message.setTags("标签");
                message.setKeys("ключ-" + number);
                message.putUserProperty("属性", "värde 😀");
            }
            case 2 -> message.setBody(noise(200 * 1024));
            case 3 -> { } // nothing but a body: not even a unique id
            case 4 -> message.setKeys("first-" + number + "  second-" + number + " shared"); // two spaces
            case 5 -> compressed(message, CompressionType.ZLIB);
            case 6 -> compressed(message, CompressionType.LZ4);
            case 7 -> compressed(message, CompressionType.ZSTD);
            case 8 -> {
                message.setBornHost(BORN_HOST_V6);
                message.setBornHostV6Flag();
            }
            case 9 -> message.setSysFlag(MessageSysFlag.TRANSACTION_PREPARED_TYPE); // indexed, but in no queue
            case 10 -> {
                message.setSysFlag(MessageSysFlag.TRANSACTION_COMMIT_TYPE);
                message.setPreparedTransactionOffset(number);
            }
            case 11 -> message.setBody(new byte[0]);
            default -> {
                message.setFlag(Integer.MIN_VALUE);
                message.setReconsumeTimes(3);
            }
        }
        if (number % KINDS != 3) {
            MessageClientIDSetter.setUniqID(message);
        }
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private MessageExtBatch batch(String topic, int queueId) throws Exception {
        List<Message> members = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            Message member = new Message(topic, "TagBatch", "batch-" + number, ("member " + number).getBytes(StandardCharsets.UTF_8));
            MessageClientIDSetter.setUniqID(member);
            members.add(member);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(topic);
        batch.setQueueId(queueId);
        batch.setBody(MessageDecoder.encodeMessages(members));
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(BORN_HOST);
        batch.setStoreHost(STORE_HOST);
        MessageAccessor.setProperties(batch, new LinkedHashMap<>());
        return batch;
    }

    private void compressed(MessageExtBrokerInner message, CompressionType type) throws Exception {
        byte[] plain = "compress me ".repeat(1000).getBytes(StandardCharsets.UTF_8);
        message.setBody(CompressorFactory.getCompressor(type).compress(plain, 5));
        message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
    }

    private byte[] noise(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    private void result(int number, String topic, int queueId, PutMessageResult result) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("kind", "put");
        answer.put("number", number);
        answer.put("topic", topic);
        answer.put("queueId", queueId);
        answer.put("status", result.getPutMessageStatus().name());
        answer.put("offsetMsgId", result.getAppendMessageResult().getMsgId());
        answer.put("commitLogOffset", result.getAppendMessageResult().getWroteOffset());
        answer.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
        Main.answer(answer);
    }
}
