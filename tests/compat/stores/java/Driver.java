import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * A RocketMQ client of the version on its class path. It follows instructions, one JSON object a line on standard input, and
 * answers each with a line on standard output. The source compiles with every client from 4.4.0 to 5.5.0, so it uses what
 * they have in common; for the rest it speaks the broker's protocol (request codes did not change).
 *
 * <pre>
 *   request  {code, fields, body?, nameServer?}        any request to the broker: {code, remark, fields, body}
 *   send     {topic, queueId?, messages, compress?}    one after another; each as in message()
 *   batch    {topic, queueId, messages}                one send of all of them
 *   half     {topic, message, outcome}                 a transaction: COMMIT, ROLLBACK or UNKNOW
 *   consume  {group, topic, count, fail, level, times} a push consumer, until it has seen `count` deliveries
 *   pull     {topic, queueId, offset, group?}          32 messages at most, as the client decodes them
 *   query    {topic, key, full?}                       log offsets of what the broker's index finds; full: the messages, too
 * </pre>
 */
public final class Driver {
    private static final String BROKER_NAME = "fixture-a";
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final long TIMEOUT_MS = 20_000;
    private static final int SUBSCRIPTION_IN_REQUEST = 4;

    private final String nameServer;
    private final String broker;
    private final NettyRemotingClient remoting = new NettyRemotingClient(new NettyClientConfig());
    private DefaultMQProducer producer;
    private DefaultMQProducer plainProducer;

    private Driver(String nameServer, String broker) {
        this.nameServer = nameServer;
        this.broker = broker;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        int code = 0;
        try {
            Driver driver = new Driver(args[0], args[1]);
            driver.remoting.start();
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(GSON.toJson(driver.follow(JsonParser.parseString(line).getAsJsonObject())));
            }
            driver.stop();
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    private Object follow(JsonObject what) throws Exception {
        switch (what.get("do").getAsString()) {
            case "request":
                return request(what);
            case "send":
                return send(what);
            case "batch":
                return batch(what);
            case "half":
                return half(what);
            case "consume":
                return consume(what);
            case "pull":
                return pull(what);
            case "query":
                return query(what);
            default:
                throw new IllegalArgumentException("unknown instruction " + what);
        }
    }

    private void stop() {
        if (producer != null) {
            producer.shutdown();
            plainProducer.shutdown();
        }
        remoting.shutdown();
    }

    private RemotingCommand ask(int code, Map<String, String> fields, byte[] body) throws Exception {
        return ask(broker, code, fields, body);
    }

    private RemotingCommand ask(String address, int code, Map<String, String> fields, byte[] body) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, null);
        command.setExtFields(new HashMap<>(fields));
        command.setBody(body);
        return remoting.invokeSync(address, command, TIMEOUT_MS);
    }

    private Object request(JsonObject what) throws Exception {
        Map<String, String> fields = new HashMap<>();
        if (what.has("fields")) {
            what.getAsJsonObject("fields").entrySet().forEach(e -> fields.put(e.getKey(), e.getValue().getAsString()));
        }
        byte[] body = what.has("body") ? what.get("body").getAsString().getBytes(StandardCharsets.UTF_8) : null;
        String address = what.has("nameServer") ? nameServer : broker;
        RemotingCommand response = ask(address, what.get("code").getAsInt(), fields, body);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", response.getCode());
        answer.put("remark", response.getRemark());
        answer.put("fields", response.getExtFields());
        answer.put("body", response.getBody() == null ? null : new String(response.getBody(), StandardCharsets.UTF_8));
        return answer;
    }

    /** {body or bodyLength, tags?, keys?, delayLevel?, flag?, properties?}: properties go by the back door, so any name will do. */
    private static Message message(String topic, JsonObject what) {
        byte[] body;
        if (what.has("bodyLength")) {
            body = new byte[what.get("bodyLength").getAsInt()];
            for (int at = 0; at < body.length; at++) {
                body[at] = (byte) ('a' + at / 7 % 26);
            }
        } else {
            body = what.get("body").getAsString().getBytes(StandardCharsets.UTF_8);
        }
        Message message = new Message(topic, body);
        if (what.has("tags")) {
            message.setTags(what.get("tags").getAsString());
        }
        if (what.has("keys")) {
            message.setKeys(what.get("keys").getAsString());
        }
        if (what.has("delayLevel")) {
            message.setDelayTimeLevel(what.get("delayLevel").getAsInt());
        }
        if (what.has("flag")) {
            message.setFlag(what.get("flag").getAsInt());
        }
        if (what.has("properties")) {
            what.getAsJsonObject("properties").entrySet()
                .forEach(e -> MessageAccessor.putProperty(message, e.getKey(), e.getValue().getAsString()));
        }
        return message;
    }

    private static List<Message> messages(JsonObject what) {
        List<Message> messages = new ArrayList<>();
        JsonArray given = what.getAsJsonArray("messages");
        for (JsonElement each : given) {
            messages.add(message(what.get("topic").getAsString(), each.getAsJsonObject()));
        }
        return messages;
    }

    private DefaultMQProducer producer(boolean compress) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("pg_fixture");
            producer.setNamesrvAddr(nameServer);
            producer.setInstanceName("compressing");
            producer.setSendMsgTimeout((int) TIMEOUT_MS);
            producer.start();
            plainProducer = new DefaultMQProducer("pg_fixture_plain");
            plainProducer.setNamesrvAddr(nameServer);
            plainProducer.setInstanceName("plain");
            plainProducer.setSendMsgTimeout((int) TIMEOUT_MS);
            plainProducer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            plainProducer.start();
        }
        return compress ? producer : plainProducer;
    }

    private Object send(JsonObject what) throws Exception {
        List<Object> results = new ArrayList<>();
        DefaultMQProducer sender = producer(what.has("compress"));
        int turn = 0;
        for (Message message : messages(what)) {
            int queue = what.has("queueId") ? what.get("queueId").getAsInt() : turn++ % what.get("queues").getAsInt();
            results.add(result(sender.send(message, new MessageQueue(message.getTopic(), BROKER_NAME, queue))));
        }
        return results;
    }

    private Object batch(JsonObject what) throws Exception {
        MessageQueue queue = new MessageQueue(what.get("topic").getAsString(), BROKER_NAME, what.get("queueId").getAsInt());
        return result(producer(true).send(messages(what), queue));
    }

    private static Map<String, Object> result(SendResult result) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("status", result.getSendStatus().name());
        answer.put("topic", result.getMessageQueue().getTopic());
        answer.put("queueId", result.getMessageQueue().getQueueId());
        answer.put("queueOffset", result.getQueueOffset());
        answer.put("msgId", result.getMsgId());
        answer.put("offsetMsgId", result.getOffsetMsgId());
        return answer;
    }

    private Object half(JsonObject what) throws Exception {
        LocalTransactionState outcome = LocalTransactionState.valueOf(what.get("outcome").getAsString() + (
            what.get("outcome").getAsString().equals("UNKNOW") ? "" : "_MESSAGE"));
        TransactionMQProducer transactions = new TransactionMQProducer("pg_transactions");
        transactions.setNamesrvAddr(nameServer);
        transactions.setInstanceName("tx-" + System.nanoTime());
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return outcome;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        transactions.start();
        try {
            Message message = message(what.get("topic").getAsString(), what.getAsJsonObject("message"));
            return result(transactions.sendMessageInTransaction(message, null));
        } finally {
            transactions.shutdown();
        }
    }

    /** `fail` is "never", "once" or "always"; `only` restricts that to bodies with this text. Offsets are committed on the way out. */
    private Object consume(JsonObject what) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(what.get("group").getAsString());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("c-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setConsumeMessageBatchMaxSize(1);
        if (what.has("times")) {
            consumer.setMaxReconsumeTimes(what.get("times").getAsInt());
        }
        consumer.subscribe(what.get("topic").getAsString(), what.has("tags") ? what.get("tags").getAsString() : "*");
        String fail = what.get("fail").getAsString();
        String only = what.has("only") ? what.get("only").getAsString() : "";
        int level = what.has("level") ? what.get("level").getAsInt() : 0;
        CountDownLatch missing = new CountDownLatch(what.get("count").getAsInt());
        List<Object> deliveries = new ArrayList<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            boolean fails = new String(message.getBody(), StandardCharsets.UTF_8).contains(only)
                && (fail.equals("always") || fail.equals("once") && message.getReconsumeTimes() == 0);
            context.setDelayLevelWhenNextConsume(level);
            Map<String, Object> delivery = new LinkedHashMap<>();
            delivery.put("msgId", message.getMsgId());
            delivery.put("reconsumeTimes", message.getReconsumeTimes());
            delivery.put("topic", message.getTopic());
            delivery.put("failed", fails);
            synchronized (deliveries) {
                deliveries.add(delivery);
            }
            missing.countDown();
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = missing.await(90, TimeUnit.SECONDS);
        Thread.sleep(1500); // what failed is sent back after the listener, and nothing tells when
        consumer.shutdown();
        if (!all) {
            throw new IllegalStateException("after 90 s still without " + missing.getCount() + " deliveries: " + what);
        }
        return deliveries;
    }

    private Object pull(JsonObject what) throws Exception {
        Map<String, String> fields = new HashMap<>();
        fields.put("consumerGroup", what.has("group") ? what.get("group").getAsString() : "TOOLS_CONSUMER");
        fields.put("topic", what.get("topic").getAsString());
        fields.put("queueId", what.get("queueId").getAsString());
        fields.put("queueOffset", what.get("offset").getAsString());
        fields.put("maxMsgNums", "32");
        fields.put("sysFlag", String.valueOf(SUBSCRIPTION_IN_REQUEST));
        fields.put("commitOffset", "0");
        fields.put("suspendTimeoutMillis", "0");
        fields.put("subscription", what.has("expression") ? what.get("expression").getAsString() : "*");
        fields.put("expressionType", what.has("expressionType") ? what.get("expressionType").getAsString() : "TAG");
        fields.put("subVersion", "0");
        RemotingCommand response = ask(11, fields, null);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", response.getCode());
        answer.put("remark", response.getRemark());
        answer.put("fields", response.getExtFields());
        List<Object> messages = new ArrayList<>();
        if (response.getBody() != null) {
            for (MessageExt message : decoded(ByteBuffer.wrap(response.getBody()))) {
                messages.add(fieldsOf(message));
            }
        }
        answer.put("messages", messages);
        return answer;
    }

    /** As the client does it: clients that know inner batches take them apart. */
    @SuppressWarnings("unchecked")
    private static List<MessageExt> decoded(ByteBuffer frames) throws Exception {
        for (Method method : MessageDecoder.class.getMethods()) {
            if (method.getName().equals("decodesBatch")) {
                return (List<MessageExt>) method.invoke(null, frames, true, true, true);
            }
        }
        return MessageDecoder.decodes(frames);
    }

    private static Map<String, Object> fieldsOf(MessageExt message) throws Exception {
        Map<String, Object> fields = new LinkedHashMap<>();
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("commitLogOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("getMsgId", message.getMsgId());
        fields.put("bodyLength", body.length);
        fields.put("bodySha256", hex(MessageDigest.getInstance("SHA-256").digest(body)));
        fields.put("bodyCRC", message.getBodyCRC());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("properties", new TreeMap<>(message.getProperties()));
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", text(message.getBornHost()));
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", text(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return fields;
    }

    private Object query(JsonObject what) throws Exception {
        Map<String, String> fields = new HashMap<>();
        fields.put("topic", what.get("topic").getAsString());
        fields.put("key", what.get("key").getAsString());
        fields.put("maxNum", "64");
        fields.put("beginTimestamp", "0");
        fields.put("endTimestamp", String.valueOf(Long.MAX_VALUE));
        if (what.has("unique")) {
            fields.put("_UNIQUE_KEY_QUERY", "true");
        }
        RemotingCommand response = ask(12, fields, null);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("code", response.getCode());
        answer.put("remark", response.getRemark());
        List<Object> offsets = new ArrayList<>();
        List<Object> messages = new ArrayList<>();
        if (response.getBody() != null) {
            for (MessageExt message : MessageDecoder.decodes(ByteBuffer.wrap(response.getBody()))) {
                offsets.add(message.getCommitLogOffset());
                messages.add(fieldsOf(message));
            }
        }
        if (what.has("full")) {
            answer.put("messages", messages);
        }
        answer.put("commitLogOffsets", offsets);
        return answer;
    }

    private static String text(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + ":" + host.getPort();
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }
}
