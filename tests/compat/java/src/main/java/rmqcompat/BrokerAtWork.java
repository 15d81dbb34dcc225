package rmqcompat;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.processor.SendMessageProcessor;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.ConsumerSendMsgBackRequestHeader;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * A broker without ports that takes a store over: its delay service runs, and it does what it is told, one instruction a line.
 *
 * <pre>
 *   {"do": "put", "topic", "queueId", "body", "properties"}                        through the broker's hooks: a DELAY parks it
 *   {"do": "sendBack", "group", "topic", "queueId", "queueOffset", "delayLevel"}   CONSUMER_SEND_MSG_BACK, once the message is there
 *   {"do": "await", "topic", "queueId", "maxOffset"}                               until the queue has grown so far
 *   {"do": "awaitProgress", "level", "offset"}                                     until the delay service has come so far
 * </pre>
 */
final class BrokerAtWork {
    private static final long DEADLINE_MS = 60_000;
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("192.168.1.7", 51234);

    private final BrokerController broker;
    private final DefaultMessageStore store;

    private BrokerAtWork(BrokerController broker) {
        this.broker = broker;
        this.store = (DefaultMessageStore) broker.getMessageStore();
    }

    static void run(Setup setup, List<Map<String, Object>> instructions) throws Exception {
        BrokerController broker = setup.loadedBroker();
        BrokerAtWork work = new BrokerAtWork(broker);
        work.store.start();
        Setup.awaitDispatch(work.store);
        broker.getScheduleMessageService().start();
        for (Map<String, Object> instruction : instructions) {
            work.follow(instruction);
        }
        broker.getScheduleMessageService().shutdown();
        Setup.awaitDispatch(work.store);
        BrokerView.tables(broker);
        new Dump(work.store, List.of()).run();
        work.store.shutdown();
    }

    private void follow(Map<String, Object> instruction) throws Exception {
        String name = (String) instruction.get("do");
        switch (name) {
            case "put" -> put(instruction);
            case "sendBack" -> sendBack(instruction);
            case "await" -> await(instruction, () -> maxOffset(instruction) >= number(instruction, "maxOffset"));
            case "awaitProgress" -> await(instruction, () -> {
                Long offset = broker.getScheduleMessageService().getOffsetTable().get((int) number(instruction, "level"));
                return offset != null && offset >= number(instruction, "offset");
            });
            default -> throw new IllegalArgumentException("unknown instruction " + name);
        }
    }

    private void put(Map<String, Object> instruction) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic((String) instruction.get("topic"));
        message.setQueueId((int) number(instruction, "queueId"));
        message.setBody(((String) instruction.get("body")).getBytes(StandardCharsets.UTF_8));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN_HOST);
        message.setStoreHost(broker.getStoreHost());
        Map<String, String> properties = new LinkedHashMap<>();
        ((Map<?, ?>) instruction.get("properties")).forEach((key, value) -> properties.put((String) key, (String) value));
        MessageAccessor.setProperties(message, properties);
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        PutMessageResult result = store.putMessage(message);
        answer("put", "status", result.getPutMessageStatus().name());
    }

    private void sendBack(Map<String, Object> instruction) throws Exception {
        long queueOffset = number(instruction, "queueOffset");
        await(instruction, () -> maxOffset(instruction) > queueOffset);
        ConsumerSendMsgBackRequestHeader header = new ConsumerSendMsgBackRequestHeader();
        header.setGroup((String) instruction.get("group"));
        header.setOffset(store.getCommitLogOffsetInQueue((String) instruction.get("topic"), (int) number(instruction, "queueId"), queueOffset));
        header.setDelayLevel((int) number(instruction, "delayLevel"));
        header.setOriginTopic((String) instruction.get("topic"));
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header);
        request.makeCustomHeaderToNet();
        RemotingCommand response = new SendMessageProcessor(broker).processRequest(null, request);
        answer("sendBack", "code", response.getCode());
    }

    private long maxOffset(Map<String, Object> instruction) throws Exception {
        return store.getMaxOffsetInQueue((String) instruction.get("topic"), (int) number(instruction, "queueId"));
    }

    private static void await(Map<String, Object> instruction, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("waited in vain: " + instruction);
            }
            Thread.sleep(10);
        }
    }

    private static long number(Map<String, Object> instruction, String name) {
        return ((Number) instruction.get(name)).longValue();
    }

    private static void answer(String kind, String name, Object value) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("kind", kind);
        answer.put(name, value);
        Main.answer(answer);
    }
}
