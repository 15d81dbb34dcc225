import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** RocketMQ's remoting client as a program of the matrix: tests/helpers/interop/program.py has the instructions. */
public final class RemotingClient {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final int TIMEOUT_MS = Integer.parseInt(System.getenv().getOrDefault("CLIENT_TIMEOUT_MS", "20000"));
    private static final boolean IS_TLS = System.getenv().containsKey("CLIENT_TLS");

    private final String nameServers;
    private final RPCHook credentials;
    private final List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
    private final AtomicInteger checked = new AtomicInteger();
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer member;
    private DefaultLitePullConsumer poller;
    private Thread polling;
    private volatile boolean isPolling;

    private RemotingClient(String nameServers, RPCHook credentials) {
        this.nameServers = nameServers;
        this.credentials = credentials;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        RPCHook hook = args.length == 1 ? null : new AclClientRPCHook(new SessionCredentials(args[1], args[2]));
        RemotingClient client = new RemotingClient(args[0], hook);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("value", client.follow(JsonParser.parseString(line).getAsJsonObject()));
            } catch (Exception failure) {
                failure.printStackTrace();
                answer.put("error", failure.toString());
                answer.put("code", code(failure));
            }
            answers.println(GSON.toJson(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Integer code(Throwable failure) {
        for (Throwable one = failure; one != null; one = one.getCause()) {
            if (one instanceof MQBrokerException) {
                return ((MQBrokerException) one).getResponseCode();
            }
            if (one instanceof MQClientException && ((MQClientException) one).getResponseCode() > 0) {
                return ((MQClientException) one).getResponseCode();
            }
        }
        return null;
    }

    private Object follow(JsonObject what) throws Exception {
        switch (text(what, "do")) {
            case "send":
                return send(what);
            case "batch":
                return List.of(place(producer(what).send(messages(what), TIMEOUT_MS)));
            case "recall":
                return recall(what);
            case "transaction":
                return transaction(what);
            case "checked":
                return checked.get();
            case "request":
                Message reply = producer(what).request(messages(what).get(0), TIMEOUT_MS);
                return new String(reply.getBody(), StandardCharsets.UTF_8);
            case "consume":
                return consume(what);
            case "received":
                return received(what);
            case "leave":
                leave();
                return null;
            case "find":
                return find(what);
            case "raw":
                return raw(what);
            default:
                throw new IllegalArgumentException("unknown instruction " + what);
        }
    }

    private DefaultMQProducer producer(JsonObject what) throws Exception {
        if (what.has("trace")) {
            return start(new DefaultMQProducer("pg_traced", credentials, true, null));
        }
        if (producer == null) {
            producer = start(new DefaultMQProducer("pg_interop", credentials));
        }
        return producer;
    }

    private <P extends DefaultMQProducer> P start(P made) throws MQClientException {
        made.setNamesrvAddr(nameServers);
        made.setSendMsgTimeout(TIMEOUT_MS);
        made.setMqClientApiTimeout(TIMEOUT_MS);
        made.setMaxMessageSize(64 << 20);
        made.setUseTLS(IS_TLS);
        made.start();
        return made;
    }

    private Object send(JsonObject what) throws Exception {
        List<Object> places = new ArrayList<>();
        String mode = what.has("mode") ? text(what, "mode") : "sync";
        for (JsonElement element : what.getAsJsonArray("messages")) {
            JsonObject one = element.getAsJsonObject();
            Message message = message(text(what, "topic"), one);
            if (mode.equals("one-way")) {
                producer(what).sendOneway(message);
            } else if (mode.equals("async")) {
                CompletableFuture<SendResult> sent = new CompletableFuture<>();
                producer(what).send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        sent.complete(result);
                    }

                    @Override
                    public void onException(Throwable failure) {
                        sent.completeExceptionally(failure);
                    }
                });
                places.add(place(sent.get(TIMEOUT_MS, TimeUnit.MILLISECONDS)));
            } else if (one.has("order")) {
                places.add(place(producer(what).send(message, new SelectMessageQueueByHash(), text(one, "order"))));
            } else {
                places.add(place(producer(what).send(message)));
            }
        }
        return places;
    }

    /** 4.9 has no such method. */
    private Object recall(JsonObject what) throws Exception {
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer(what), text(what, "topic"), text(what, "handle"));
        } catch (InvocationTargetException failure) {
            throw (Exception) failure.getCause();
        }
    }

    private Object transaction(JsonObject what) throws Exception {
        TransactionMQProducer half = new TransactionMQProducer(text(what, "group"), credentials);
        half.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(text(what, "end"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.incrementAndGet();
                return state(text(what, "check"));
            }
        });
        start(half);
        return List.of(place(half.sendMessageInTransaction(messages(what).get(0), null)));
    }

    private static LocalTransactionState state(String end) {
        switch (end) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private static List<Message> messages(JsonObject what) {
        List<Message> messages = new ArrayList<>();
        what.getAsJsonArray("messages").forEach(one -> messages.add(message(text(what, "topic"), one.getAsJsonObject())));
        return messages;
    }

    private static Message message(String topic, JsonObject one) {
        byte[] body = one.has("bytes") ? random(one.get("bytes").getAsInt()) : text(one, "body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, body);
        if (one.has("tags")) {
            message.setTags(text(one, "tags"));
        }
        if (one.has("keys")) {
            message.setKeys(text(one, "keys"));
        }
        if (one.has("delayLevel")) {
            message.setDelayTimeLevel(one.get("delayLevel").getAsInt());
        }
        if (one.has("deliverAtMs")) {
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", one.get("deliverAtMs").getAsString());
        }
        if (one.has("properties")) {
            one.getAsJsonObject("properties").entrySet().forEach(
                e -> message.putUserProperty(e.getKey(), e.getValue().getAsString()));
        }
        return message;
    }

    private static byte[] random(int count) {
        byte[] bytes = new byte[count];
        new Random(0).nextBytes(bytes);
        return bytes;
    }

    private static Map<String, Object> place(SendResult result) throws Exception {
        Map<String, Object> place = new LinkedHashMap<>();
        place.put("status", result.getSendStatus().name());
        place.put("queueId", result.getMessageQueue().getQueueId());
        place.put("queueOffset", result.getQueueOffset());
        place.put("msgId", result.getMsgId());
        place.put("offsetMsgId", result.getOffsetMsgId());
        try {
            place.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(result));
        } catch (NoSuchMethodException older) {
            place.put("recallHandle", null);
        }
        return place;
    }

    private Object consume(JsonObject what) throws Exception {
        received.clear();
        String mode = text(what, "mode");
        MessageSelector selector = what.has("sql") ? MessageSelector.bySql(text(what, "sql"))
            : MessageSelector.byTag(what.has("tags") ? text(what, "tags") : "*");
        if (mode.equals("lite")) {
            poller = new DefaultLitePullConsumer(text(what, "group"), credentials);
            poller.setNamesrvAddr(nameServers);
            poller.setUseTLS(IS_TLS);
            poller.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            poller.subscribe(text(what, "topic"), selector);
            poller.start();
            isPolling = true;
            polling = new Thread(() -> {
                while (isPolling) {
                    poller.poll(200).forEach(message -> received.add(seen(message)));
                }
            });
            polling.setDaemon(true);
            polling.start();
            return null;
        }
        member = new DefaultMQPushConsumer(text(what, "group"), credentials, new AllocateMessageQueueAveragely());
        member.setNamesrvAddr(nameServers);
        member.setMqClientApiTimeout(TIMEOUT_MS);
        member.setUseTLS(IS_TLS);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.setMessageModel(mode.equals("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        member.subscribe(text(what, "topic"), selector);
        boolean fails = what.has("fails");
        boolean replies = what.has("replies");
        if (mode.equals("ordered")) {
            member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> received.add(seen(message)));
                return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (replies) {
                        reply(message, what);
                    }
                    received.add(seen(message));
                }
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        if (mode.equals("pop")) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(member, false);
        }
        member.start();
        return member.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    private void reply(MessageExt message, JsonObject what) {
        try {
            byte[] body = ("reply to " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            producer(what).send(MessageUtil.createReplyMessage(message, body), TIMEOUT_MS);
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
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

    private void leave() throws Exception {
        if (poller != null) {
            isPolling = false;
            polling.join();
            poller.commitSync();
            poller.shutdown();
            poller = null;
        }
        if (member != null) {
            member.shutdown();
            member = null;
        }
    }

    private Object find(JsonObject what) throws Exception {
        String topic = text(what, "topic");
        if (text(what, "by").equals("key")) {
            List<Object> found = new ArrayList<>();
            long now = System.currentTimeMillis();
            producer(what).queryMessage(topic, text(what, "text"), 32, 0, now + 86_400_000L).getMessageList()
                .forEach(message -> found.add(seen(message)));
            return found;
        }
        return List.of(seen(producer(what).viewMessage(topic, text(what, "text"))));
    }

    private Object raw(JsonObject what) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(what.get("code").getAsInt(), null);
        what.getAsJsonObject("fields").entrySet().forEach(e -> request.addExtField(e.getKey(), e.getValue().getAsString()));
        RemotingCommand answer = producer(what).getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl()
            .getRemotingClient().invokeSync(nameServers, request, TIMEOUT_MS);
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("code", answer.getCode());
        told.put("remark", answer.getRemark());
        return told;
    }

    private static Map<String, Object> seen(MessageExt message) {
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        seen.put("tags", message.getTags());
        seen.put("keys", message.getKeys());
        seen.put("msgId", message.getMsgId());
        seen.put("queueId", message.getQueueId());
        seen.put("queueOffset", message.getQueueOffset());
        seen.put("attempt", message.getReconsumeTimes() + 1);
        seen.put("properties", new TreeMap<>(message.getProperties()));
        return seen;
    }

    private static String text(JsonObject what, String name) {
        return what.get(name).getAsString();
    }
}
