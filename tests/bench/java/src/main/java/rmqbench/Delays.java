package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;

/** A broker without ports: it parks delayed messages, or its schedule service delivers those that were parked before. */
final class Delays {
    private static final int LEVEL = 1;
    private static final int POLL_MS = 20;
    private static final long DEADLINE_NS = 120_000_000_000L;

    void addTo(Map<String, Main.Command> commands) {
        commands.put("delay.park", this::park);
        commands.put("delay.deliver", this::deliver);
    }

    /** {directory, settings, topic, queues, bodyBytes, count}: put with DELAY=1 through the broker's hooks, and stop cleanly. */
    private JSONObject park(JSONObject fields) throws Exception {
        BrokerController broker = loaded(fields);
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        int queues = fields.getIntValue("queues");
        broker.getTopicConfigManager().updateTopicConfig(new TopicConfig(fields.getString("topic"), queues, queues));
        store.start();
        Messages messages = new Messages(fields);
        for (int number = 0; number < fields.getIntValue("count"); number++) {
            MessageExtBrokerInner message = messages.single(number, number % queues, messages.properties(number));
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_DELAY_TIME_LEVEL, Integer.toString(LEVEL));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            StoreAlone.check(store.putMessage(message));
        }
        StoreAlone.awaitDispatch(store);
        store.shutdown();
        return new JSONObject();
    }

    /** {directory, settings, topic, queues, count}: rate from the first delivered message seen to the last; all must be due. */
    private JSONObject deliver(JSONObject fields) throws Exception {
        BrokerController broker = loaded(fields);
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        store.start();
        StoreAlone.awaitDispatch(store);
        int count = fields.getIntValue("count");
        long deadline = System.nanoTime() + DEADLINE_NS;
        broker.getScheduleMessageService().start();
        long firstSeen = 0;
        long firstNs = 0;
        long seen = 0;
        while (seen < count) {
            Thread.sleep(POLL_MS);
            seen = 0;
            for (int queueId = 0; queueId < fields.getIntValue("queues"); queueId++) {
                seen += store.getMaxOffsetInQueue(fields.getString("topic"), queueId);
            }
            if (firstNs == 0 && seen > 0) {
                firstSeen = seen;
                firstNs = System.nanoTime();
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(seen + " of " + count + " messages were delivered");
            }
        }
        double rate = (count - firstSeen) / Figures.secondsSince(firstNs);
        broker.getScheduleMessageService().shutdown();
        store.shutdown();
        return JSONObject.of("rate", rate);
    }

    private static BrokerController loaded(JSONObject fields) throws Exception {
        BrokerController broker = new BrokerController(
            Servers.brokerConfig(fields), new NettyServerConfig(), new NettyClientConfig(), StoreAlone.storeConfig(fields));
        if (!broker.initialize()) {
            throw new IllegalStateException("BrokerController.initialize() refused");
        }
        return broker;
    }
}
