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
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A RocketMQ client of the version on its class path, as a witness: what it sends others read, what others send it reads.
 * Arguments: name servers [access key, secret key]. It follows instructions, one JSON object a line on standard input, and
 * answers each with a line on standard output. The source compiles with the clients of 4.9 and 5.x.
 *
 * <pre>
 *   send       {topic, messages, brokerName?, queueId?}  one after another: where each of them is
 *   batch      {topic, messages, brokerName, queueId}    one request for all of them
 *   begin      {topic, everyMs}                          sends 0, 1, 2 ... in the background, until
 *   end        {}                                        {acknowledged, failed, brokers}: numbers, errors, counts by broker
 *   push       {group, topic, strategy?, pop?, ordered?} joins a group from the first offset on: its client id
 *   poll       {group, topic, strategy?}                 the same with a lite pull consumer, which polls in the background
 *   received   {count, timeoutMs}                        what the member has got, as soon as there are so many
 *   assigned   {topic}                                   the queues that the member has now: [broker name, queue id] of each
 *   leave      {}                                        the member leaves its group
 *   allocate   {strategy, topic, queues, members, rooms?}  the division that a strategy makes: queues of each member
 *   lite       {group, topic, count, timeoutMs}          a lite pull consumer, until it has so many
 * </pre>
 */
public final class Witness {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final int SEND_TIMEOUT_MS = 10_000;
    /** Of questions to name servers and brokers: a machine with few processors may be slow. */
    private static final int ASK_TIMEOUT_MS = 20_000;

    private final String nameServers;
    private final RPCHook credentials;
    private final List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer member;
    private Poller poller;
    private Sender sender;

    private Witness(String nameServers, RPCHook credentials) {
        this.nameServers = nameServers;
        this.credentials = credentials;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        RPCHook credentials = args.length == 1 ? null : new AclClientRPCHook(new SessionCredentials(args[1], args[2]));
        Witness witness = new Witness(args[0], credentials);
        int code = 0;
        try {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                answers.println(GSON.toJson(witness.follow(JsonParser.parseString(line).getAsJsonObject())));
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code);
    }

    private Object follow(JsonObject what) throws Exception {
        switch (what.get("do").getAsString()) {
            case "send":
                return send(what);
            case "batch":
                return place(producer().send(messages(what), queue(what), SEND_TIMEOUT_MS));
            case "begin":
                sender = new Sender(producer(), text(what, "topic"), what.get("everyMs").getAsLong());
                sender.start();
                return null;
            case "end":
                return sender.end();
            case "push":
                return push(what);
            case "poll":
                received.clear();
                poller = new Poller(litePull(what), received);
                poller.start();
                return null;
            case "received":
                return received(what);
            case "assigned":
                return assigned(text(what, "topic"));
            case "leave":
                leave();
                return null;
            case "allocate":
                return allocate(what);
            case "lite":
                return lite(what);
            default:
                throw new IllegalArgumentException("unknown instruction " + what);
        }
    }

    private DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("witness", credentials);
            producer.setNamesrvAddr(nameServers);
            producer.setMqClientApiTimeout(ASK_TIMEOUT_MS);
            producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
            producer.start();
        }
        return producer;
    }

    private Object send(JsonObject what) throws Exception {
        List<Object> places = new ArrayList<>();
        for (Message message : messages(what)) {
            MessageQueue queue = what.has("queueId") ? queue(what) : null;
            places.add(place(queue == null ? producer().send(message) : producer().send(message, queue)));
        }
        return places;
    }

    private static MessageQueue queue(JsonObject what) {
        return new MessageQueue(text(what, "topic"), text(what, "brokerName"), what.get("queueId").getAsInt());
    }

    private static List<Message> messages(JsonObject what) {
        List<Message> messages = new ArrayList<>();
        JsonArray wanted = what.getAsJsonArray("messages");
        for (JsonElement element : wanted) {
            JsonObject one = element.getAsJsonObject();
            Message message = new Message(text(what, "topic"), text(one, "body").getBytes(StandardCharsets.UTF_8));
            if (one.has("tags")) {
                message.setTags(text(one, "tags"));
            }
            if (one.has("keys")) {
                message.setKeys(text(one, "keys"));
            }
            if (one.has("delayLevel")) {
                message.setDelayTimeLevel(one.get("delayLevel").getAsInt());
            }
            if (one.has("flag")) {
                message.setFlag(one.get("flag").getAsInt());
            }
            if (one.has("properties")) {
                one.getAsJsonObject("properties").entrySet().forEach(
                    e -> MessageAccessor.putProperty(message, e.getKey(), e.getValue().getAsString()));
            }
            messages.add(message);
        }
        return messages;
    }

    private static Object place(SendResult result) {
        Map<String, Object> place = new LinkedHashMap<>();
        place.put("status", result.getSendStatus().name());
        place.put("brokerName", result.getMessageQueue().getBrokerName());
        place.put("queueId", result.getMessageQueue().getQueueId());
        place.put("queueOffset", result.getQueueOffset());
        place.put("msgId", result.getMsgId());
        place.put("offsetMsgId", result.getOffsetMsgId());
        return place;
    }

    private Object push(JsonObject what) throws Exception {
        member = new DefaultMQPushConsumer(text(what, "group"), credentials, strategy(what));
        member.setNamesrvAddr(nameServers);
        member.setMqClientApiTimeout(ASK_TIMEOUT_MS);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.subscribe(text(what, "topic"), "*");
        if (what.has("ordered")) {
            member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> received.add(seen(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> received.add(seen(message)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        if (what.has("pop")) {
            // Brokers of 5.x divide the queues, and say that the group consumes by POP; 4.9 has no such method.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(member, false);
        }
        received.clear();
        member.start();
        return member.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    private DefaultLitePullConsumer litePull(JsonObject what) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(text(what, "group"), credentials);
        consumer.setNamesrvAddr(nameServers);
        consumer.setMqClientApiTimeout(ASK_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(strategy(what));
        consumer.subscribe(text(what, "topic"), "*");
        consumer.start();
        return consumer;
    }

    private void leave() throws Exception {
        if (poller != null) {
            poller.end();
            poller = null;
        } else {
            member.shutdown();
        }
    }

    private Object assigned(String topic) throws Exception {
        Set<MessageQueue> queues = poller == null
            ? member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
            : poller.consumer.assignment();
        return places(new TreeSet<>(queues), topic);
    }

    private static List<Object> places(Iterable<MessageQueue> queues, String topic) {
        List<Object> places = new ArrayList<>();
        for (MessageQueue queue : queues) {
            if (queue.getTopic().equals(topic)) {
                places.add(List.of(queue.getBrokerName(), queue.getQueueId()));
            }
        }
        return places;
    }

    private static Object allocate(JsonObject what) {
        List<MessageQueue> queues = new ArrayList<>();
        what.getAsJsonArray("queues").forEach(one -> queues.add(new MessageQueue(
            text(what, "topic"), one.getAsJsonArray().get(0).getAsString(), one.getAsJsonArray().get(1).getAsInt())));
        List<String> members = new ArrayList<>();
        what.getAsJsonArray("members").forEach(one -> members.add(one.getAsString()));
        AllocateMessageQueueStrategy strategy = strategy(what);
        Map<String, Object> division = new LinkedHashMap<>();
        for (String own : members) {
            division.put(own, places(strategy.allocate("group", own, queues, members), text(what, "topic")));
        }
        return division;
    }

    private static AllocateMessageQueueStrategy strategy(JsonObject what) {
        switch (what.has("strategy") ? text(what, "strategy") : "AVG") {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                Set<String> rooms = new HashSet<>();
                what.getAsJsonArray("rooms").forEach(one -> rooms.add(one.getAsString()));
                byRoom.setConsumeridcs(rooms);
                return byRoom;
            case "MACHINE_ROOM_NEARBY-AVG":
                // Names are room@name.
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().split("@")[0];
                        }

                        @Override
                        public String consumerDeployIn(String clientId) {
                            return clientId.split("@")[0];
                        }
                    });
            default:
                throw new IllegalArgumentException("unknown strategy " + what);
        }
    }

    private Object received(JsonObject what) throws Exception {
        long deadline = System.currentTimeMillis() + what.get("timeoutMs").getAsLong();
        while (received.size() < what.get("count").getAsInt() && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        synchronized (received) {
            return new ArrayList<>(received);
        }
    }

    private Object lite(JsonObject what) throws Exception {
        List<Object> found = new ArrayList<>();
        DefaultLitePullConsumer consumer = litePull(what);
        try {
            long deadline = System.currentTimeMillis() + what.get("timeoutMs").getAsLong();
            while (found.size() < what.get("count").getAsInt() && System.currentTimeMillis() < deadline) {
                consumer.poll(200).forEach(message -> found.add(seen(message)));
            }
        } finally {
            consumer.shutdown();
        }
        return found;
    }

    private static Map<String, Object> seen(MessageExt message) {
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("topic", message.getTopic());
        seen.put("brokerName", message.getBrokerName());
        seen.put("queueId", message.getQueueId());
        seen.put("queueOffset", message.getQueueOffset());
        seen.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        seen.put("tags", message.getTags());
        seen.put("keys", message.getKeys());
        seen.put("msgId", message.getMsgId());
        seen.put("offsetMsgId", message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : null);
        seen.put("flag", message.getFlag());
        seen.put("bornTimestamp", message.getBornTimestamp());
        seen.put("storeTimestamp", message.getStoreTimestamp());
        seen.put("bornHost", message.getBornHostString());
        seen.put("reconsumeTimes", message.getReconsumeTimes());
        seen.put("properties", new TreeMap<>(message.getProperties()));
        return seen;
    }

    private static String text(JsonObject what, String name) {
        return what.get(name).getAsString();
    }

    /** Polls in the background until it is told to end; the consumer commits what it has got. */
    private static final class Poller extends Thread {
        private final DefaultLitePullConsumer consumer;
        private final List<Map<String, Object>> received;
        private volatile boolean isOver;

        Poller(DefaultLitePullConsumer consumer, List<Map<String, Object>> received) {
            this.consumer = consumer;
            this.received = received;
            setDaemon(true);
        }

        @Override
        public void run() {
            while (!isOver) {
                consumer.poll(200).forEach(message -> received.add(seen(message)));
            }
        }

        void end() throws InterruptedException {
            isOver = true;
            join();
            consumer.commitSync();
            consumer.shutdown();
        }
    }

    /** Sends the numbers from 0 on, each until it is acknowledged or the client gives up. */
    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final long everyMs;
        private final List<Integer> acknowledged = new ArrayList<>();
        private final List<String> failed = new ArrayList<>();
        private final Map<String, Integer> brokers = new TreeMap<>();
        private volatile boolean isOver;

        Sender(DefaultMQProducer producer, String topic, long everyMs) {
            this.producer = producer;
            this.topic = topic;
            this.everyMs = everyMs;
            setDaemon(true);
        }

        @Override
        public void run() {
            for (int number = 0; !isOver; number++) {
                try {
                    byte[] body = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
                    SendResult result = producer.send(new Message(topic, body));
                    acknowledged.add(number);
                    brokers.merge(result.getMessageQueue().getBrokerName() + " " + result.getSendStatus(), 1, Integer::sum);
                } catch (Exception failure) {
                    failed.add(number + ": " + failure);
                }
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(everyMs));
            }
        }

        Object end() throws InterruptedException {
            isOver = true;
            join();
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("acknowledged", acknowledged);
            answer.put("failed", failed);
            answer.put("brokers", brokers);
            return answer;
        }
    }
}
