package rmqcompat;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** What a whole broker has in its tables after it loaded a store; no port is opened. */
final class BrokerView {
    private BrokerView() {
    }

    static void print(Setup setup) throws Exception {
        BrokerController broker = setup.loadedBroker();
        Map<String, Object> log = new LinkedHashMap<>();
        log.put("kind", "log");
        log.put("brokerName", setup.brokerConfig.getBrokerName());
        log.put("minPhyOffset", broker.getMessageStore().getMinPhyOffset());
        log.put("maxPhyOffset", broker.getMessageStore().getMaxPhyOffset());
        Main.answer(log);
        tables(broker);
    }

    static void tables(BrokerController broker) throws Exception {
        for (TopicConfig topic : new TreeMap<>(broker.getTopicConfigManager().getTopicConfigTable()).values()) {
            Main.answer(topic(broker, topic));
        }
        for (SubscriptionGroupConfig group : new TreeMap<>(broker.getSubscriptionGroupManager().getSubscriptionGroupTable()).values()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("kind", "group");
            answer.put("group", group.getGroupName());
            answer.put("retryMaxTimes", group.getRetryMaxTimes());
            answer.put("retryQueueNums", group.getRetryQueueNums());
            answer.put("consumeEnable", group.isConsumeEnable());
            answer.put("consumeMessageOrderly", group.isConsumeMessageOrderly());
            Main.answer(answer);
        }
        broker.getConsumerOffsetManager().getOffsetTable().forEach((topicAtGroup, offsets) -> {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("kind", "offsets");
            answer.put("topicAtGroup", topicAtGroup);
            answer.put("offsets", new TreeMap<>(offsets));
            Main.answer(answer);
        });
        Map<String, Object> delays = new LinkedHashMap<>();
        delays.put("kind", "delayOffsets");
        delays.put("offsets", new TreeMap<>(broker.getScheduleMessageService().getOffsetTable()));
        Main.answer(delays);
    }

    private static Map<String, Object> topic(BrokerController broker, TopicConfig topic) throws Exception {
        Map<Integer, Long> maxOffsets = new TreeMap<>();
        for (int queueId = 0; queueId < topic.getReadQueueNums(); queueId++) {
            maxOffsets.put(queueId, broker.getMessageStore().getMaxOffsetInQueue(topic.getTopicName(), queueId));
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("kind", "topic");
        answer.put("topic", topic.getTopicName());
        answer.put("readQueueNums", topic.getReadQueueNums());
        answer.put("writeQueueNums", topic.getWriteQueueNums());
        answer.put("perm", topic.getPerm());
        answer.put("order", topic.isOrder());
        answer.put("maxOffsets", maxOffsets);
        return answer;
    }
}
