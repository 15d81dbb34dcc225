import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The remoting client of any version since 4.4.0, for its VIP channel: it follows instructions as RemotingClient does,
 * of which it has send, consume ("concurrent", "ordered"), received, leave, and its own pull and admin. The argument is
 * the name server. Only classes that no version has moved are named here.
 */
public final class VipClient {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final int TIMEOUT_MS = Integer.parseInt(System.getenv().getOrDefault("CLIENT_TIMEOUT_MS", "20000"));

    private final String nameServer;
    private final List<String> received = Collections.synchronizedList(new ArrayList<>());
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer member;

    private VipClient(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        VipClient client = new VipClient(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("value", client.follow(new JsonParser().parse(line).getAsJsonObject()));
            } catch (Exception failure) {
                answer.put("error", failure + (failure.getCause() == null ? "" : " / " + failure.getCause()));
            }
            answers.println(GSON.toJson(answer));
        }
        Runtime.getRuntime().halt(0);
    }

    private Object follow(JsonObject what) throws Exception {
        switch (text(what, "do")) {
            case "send":
                return send(text(what, "topic"), text(what, "body"));
            case "consume":
                return consume(what);
            case "received":
                long deadline = System.currentTimeMillis() + what.get("timeoutMs").getAsLong();
                while (received.size() < what.get("count").getAsInt() && System.currentTimeMillis() < deadline) {
                    Thread.sleep(20);
                }
                return new ArrayList<>(received);
            case "leave":
                member.shutdown();
                return null;
            case "pull":
                return pull(text(what, "group"), text(what, "topic"));
            case "admin":
                return admin(text(what, "group"), text(what, "topic"));
            default:
                throw new IllegalArgumentException("unknown instruction " + what);
        }
    }

    private Object send(String topic, String body) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("pg_vip");
            producer.setNamesrvAddr(nameServer);
            producer.setSendMsgTimeout(TIMEOUT_MS);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
        }
        return producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8))).getSendStatus().name();
    }

    private Object consume(JsonObject what) throws Exception {
        received.clear();
        member = new DefaultMQPushConsumer(text(what, "group"));
        member.setNamesrvAddr(nameServer);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.subscribe(text(what, "topic"), "*");
        if (text(what, "mode").equals("ordered")) {
            member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(this::take);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            boolean fails = what.has("fails");
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::take);
                context.setDelayLevelWhenNextConsume(1);
                boolean isFirst = messages.stream().anyMatch(one -> one.getReconsumeTimes() == 0);
                return fails && isFirst ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        member.start();
        return null;
    }

    private void take(MessageExt message) {
        received.add(new String(message.getBody(), StandardCharsets.UTF_8));
    }

    /** All messages; their end is the group's offset then. */
    private Object pull(String group, String topic) throws Exception {
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(group);
        puller.setNamesrvAddr(nameServer);
        puller.start();
        List<String> bodies = new ArrayList<>();
        Set<MessageQueue> queues = puller.fetchSubscribeMessageQueues(topic);
        for (MessageQueue queue : queues) {
            long offset = puller.minOffset(queue);
            long end = puller.maxOffset(queue);
            while (offset < end) {
                PullResult result = puller.pull(queue, "*", offset, 32);
                result.getMsgFoundList().forEach(one -> bodies.add(new String(one.getBody(), StandardCharsets.UTF_8)));
                offset = result.getNextBeginOffset();
            }
            puller.updateConsumeOffset(queue, offset);
        }
        puller.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(queues);
        puller.shutdown();
        return bodies;
    }

    private Object admin(String group, String topic) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("queues", admin.examineTopicStats(topic).getOffsetTable().size());
        told.put("behind", admin.examineConsumeStats(group).computeTotalDiff());
        told.put("clusters", new ArrayList<>(admin.examineBrokerClusterInfo().getClusterAddrTable().keySet()));
        admin.shutdown();
        return told;
    }

    private static String text(JsonObject what, String name) {
        return what.get(name).getAsString();
    }
}
