import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * RocketMQ's gRPC client as a program of the matrix: tests/helpers/interop/program.py has the instructions. Arguments: the
 * address [access key, secret key].
 */
public final class GrpcClient {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final Duration TIMEOUT = Duration.ofMillis(
        Long.parseLong(System.getenv().getOrDefault("CLIENT_TIMEOUT_MS", "20000")));
    private static final Duration INVISIBLE = Duration.ofSeconds(30);
    private static final int BATCH = 16;
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final List<Map<String, Object>> received = Collections.synchronizedList(new ArrayList<>());
    private final AtomicInteger checked = new AtomicInteger();
    private final Map<String, Producer> producers = new TreeMap<>();
    private Closeable consumer;
    private Thread polling;
    private volatile boolean isPolling;

    private GrpcClient(String[] args) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).setRequestTimeout(TIMEOUT);
        if (!System.getenv().containsKey("CLIENT_TLS")) { // the client's default is TLS
            builder.enableSsl(false);
        }
        if (args.length > 1) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(args[1], args[2]));
        }
        configuration = builder.build();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        GrpcClient client = new GrpcClient(args);
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

    /** The client has the server's code in its text only. */
    private static Integer code(Throwable failure) {
        for (Throwable one = failure; one != null; one = one.getCause()) {
            Matcher told = one instanceof ClientException ? CODE.matcher(String.valueOf(one.getMessage())) : null;
            if (told != null && told.find()) {
                return Integer.valueOf(told.group(1));
            }
        }
        return null;
    }

    private Object follow(JsonObject what) throws Exception {
        switch (text(what, "do")) {
            case "send":
                return send(what);
            case "recall":
                return producer(text(what, "topic")).recallMessage(text(what, "topic"), text(what, "handle")).toString();
            case "transaction":
                return transaction(what);
            case "checked":
                return checked.get();
            case "consume":
                consume(what);
                return null;
            case "received":
                return received(what);
            case "leave":
                leave();
                return null;
            default:
                throw new IllegalArgumentException("unknown instruction " + what);
        }
    }

    private Producer producer(String topic) throws Exception {
        if (!producers.containsKey(topic)) {
            producers.put(topic, provider.newProducerBuilder()
                .setClientConfiguration(configuration).setTopics(topic).setMaxAttempts(1).build());
        }
        return producers.get(topic);
    }

    private Object send(JsonObject what) throws Exception {
        List<Object> places = new ArrayList<>();
        boolean isAsync = what.has("mode") && text(what, "mode").equals("async");
        for (JsonElement one : what.getAsJsonArray("messages")) {
            Producer producer = producer(text(what, "topic"));
            Message message = message(text(what, "topic"), one.getAsJsonObject());
            places.add(place(isAsync
                ? producer.sendAsync(message).get(TIMEOUT.getSeconds(), TimeUnit.SECONDS) : producer.send(message)));
        }
        return places;
    }

    private Object transaction(JsonObject what) throws Exception {
        String topic = text(what, "topic");
        TransactionResolution answer = resolution(text(what, "check"));
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(message -> {
                checked.incrementAndGet();
                return answer;
            }).build();
        Transaction transaction = producer.beginTransaction();
        SendReceipt sent = producer.send(
            message(topic, what.getAsJsonArray("messages").get(0).getAsJsonObject()), transaction);
        if (text(what, "end").equals("commit")) {
            transaction.commit();
        } else if (text(what, "end").equals("rollback")) {
            transaction.rollback();
        }
        return List.of(place(sent));
    }

    private static TransactionResolution resolution(String end) {
        return end.equals("unknown") ? TransactionResolution.UNKNOWN : TransactionResolution.valueOf(end.toUpperCase());
    }

    private Message message(String topic, JsonObject one) {
        byte[] body;
        if (one.has("bytes")) {
            body = new byte[one.get("bytes").getAsInt()];
            new Random(0).nextBytes(body);
        } else {
            body = text(one, "body").getBytes(StandardCharsets.UTF_8);
        }
        MessageBuilder builder = provider.newMessageBuilder().setTopic(topic).setBody(body);
        if (one.has("tags")) {
            builder.setTag(text(one, "tags"));
        }
        if (one.has("keys")) {
            builder.setKeys(text(one, "keys"));
        }
        if (one.has("deliverAtMs")) {
            builder.setDeliveryTimestamp(one.get("deliverAtMs").getAsLong());
        }
        if (one.has("order")) {
            builder.setMessageGroup(text(one, "order"));
        }
        if (one.has("properties")) {
            one.getAsJsonObject("properties").entrySet().forEach(
                e -> builder.addProperty(e.getKey(), e.getValue().getAsString()));
        }
        return builder.build();
    }

    private static Map<String, Object> place(SendReceipt sent) {
        Map<String, Object> place = new LinkedHashMap<>();
        place.put("status", "OK");
        place.put("msgId", sent.getMessageId().toString());
        place.put("recallHandle", sent.getRecallHandle() == null || sent.getRecallHandle().isEmpty() ? null : sent.getRecallHandle());
        return place;
    }

    private void consume(JsonObject what) throws Exception {
        received.clear();
        FilterExpression filter = what.has("sql")
            ? new FilterExpression(text(what, "sql"), FilterExpressionType.SQL92)
            : new FilterExpression(what.has("tags") ? text(what, "tags") : "*", FilterExpressionType.TAG);
        Map<String, FilterExpression> subscription = Map.of(text(what, "topic"), filter);
        boolean fails = what.has("fails");
        if (text(what, "mode").equals("simple")) {
            SimpleConsumer simple = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(text(what, "group")).setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(subscription).build();
            consumer = simple;
            isPolling = true;
            polling = new Thread(() -> poll(simple));
            polling.setDaemon(true);
            polling.start();
            return;
        }
        consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(text(what, "group")).setSubscriptionExpressions(subscription)
            .setMessageListener(message -> {
                received.add(seen(message));
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
    }

    private void poll(SimpleConsumer simple) {
        while (isPolling) {
            try {
                for (MessageView message : simple.receive(BATCH, INVISIBLE)) {
                    received.add(seen(message));
                    simple.ack(message);
                }
            } catch (Exception failure) {
                failure.printStackTrace();
            }
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
        isPolling = false;
        if (polling != null) {
            polling.join(TIMEOUT.toMillis());
            polling = null;
        }
        if (consumer != null) {
            consumer.close();
            consumer = null;
        }
    }

    private static Map<String, Object> seen(MessageView message) {
        Map<String, Object> seen = new LinkedHashMap<>();
        ByteBuffer body = message.getBody();
        seen.put("body", StandardCharsets.UTF_8.decode(body).toString());
        seen.put("tags", message.getTag().orElse(null));
        seen.put("keys", String.join(" ", message.getKeys()));
        seen.put("msgId", message.getMessageId().toString());
        seen.put("attempt", message.getDeliveryAttempt());
        seen.put("properties", new TreeMap<>(message.getProperties()));
        return seen;
    }

    private static String text(JsonObject what, String name) {
        return what.get(name).getAsString();
    }
}
