package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** The messages of bench/messages.py as a client would have sent them: random bodies, UNIQ_KEY, one key, one tag of five. */
final class Messages {
    private static final String[] TAGS = {"TagA", "TagB", "TagC", "TagD", "TagE"};
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int BODIES = 4096; // a power of two; they are used in turn

    private final String topic;
    private final byte[][] bodies;

    /** {topic, bodyBytes}. */
    Messages(JSONObject fields) {
        topic = fields.getString("topic");
        int bodyBytes = fields.getIntValue("bodyBytes");
        Random random = new Random(bodyBytes);
        bodies = new byte[BODIES][bodyBytes];
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
    }

    /** What a producer puts into the header of a request. */
    String properties(int number) {
        return MessageDecoder.messageProperties2String(member(number).getProperties());
    }

    /** What the broker makes of a request: its property string becomes a map. */
    MessageExtBrokerInner single(int number, int queueId, String properties) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setBody(bodies[number & BODIES - 1]);
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        message.setPropertiesString(properties);
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        return addressed(message, queueId);
    }

    /** A producer's batch and the broker's wrapping of it. */
    MessageExtBatch batch(int firstNumber, int count, int queueId) {
        List<Message> members = new ArrayList<>(count);
        for (int number = firstNumber; number < firstNumber + count; number++) {
            members.add(member(number));
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setBody(MessageDecoder.encodeMessages(members));
        MessageAccessor.setProperties(batch, new LinkedHashMap<>());
        addressed(batch, queueId);
        return batch;
    }

    /** For a producer, which gives it its UNIQ_KEY. */
    Message unsent(int number) {
        return new Message(topic, TAGS[number % TAGS.length], "ORD-" + number, bodies[number & BODIES - 1]);
    }

    private Message member(int number) {
        Message member = new Message(topic, TAGS[number % TAGS.length], "ORD-" + number, bodies[number & BODIES - 1]);
        member.getProperties().remove("WAIT"); // "true" is the default; without it our messages are as long
        MessageClientIDSetter.setUniqID(member);
        return member;
    }

    private <T extends MessageExtBrokerInner> T addressed(T message, int queueId) {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }
}
