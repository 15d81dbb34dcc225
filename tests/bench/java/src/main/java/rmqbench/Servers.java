package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;

/** A name server or a broker of this process, on loopback. */
final class Servers {
    private static final String LOOPBACK = "127.0.0.1";
    private static final int BATCH = 1000;

    private BrokerController broker;

    void addTo(Map<String, Main.Command> commands) {
        commands.put("namesrv.start", this::startNameServer);
        commands.put("broker.start", this::startBroker);
        commands.put("broker.fill", this::fill);
    }

    /** {port}. */
    private JSONObject startNameServer(JSONObject fields) throws Exception {
        NettyServerConfig network = new NettyServerConfig();
        network.setBindAddress(LOOPBACK);
        network.setListenPort(fields.getIntValue("port"));
        NamesrvController nameServer = new NamesrvController(new NamesrvConfig(), network);
        if (!nameServer.initialize()) {
            throw new IllegalStateException("NamesrvController.initialize() refused");
        }
        nameServer.start();
        return new JSONObject();
    }

    /** {port, namesrv, directory, settings}: settings are those of the store. Answers its name, and the port of its slaves. */
    private JSONObject startBroker(JSONObject fields) throws Exception {
        NettyServerConfig network = new NettyServerConfig();
        network.setBindAddress(LOOPBACK);
        network.setListenPort(fields.getIntValue("port"));
        BrokerConfig config = brokerConfig(fields);
        config.setNamesrvAddr(fields.getString("namesrv"));
        broker = new BrokerController(config, network, new NettyClientConfig(), StoreAlone.storeConfig(fields));
        if (!broker.initialize()) {
            throw new IllegalStateException("BrokerController.initialize() refused");
        }
        broker.start();
        return JSONObject.of("broker", config.getBrokerName(), "haPort", broker.getMessageStoreConfig().getHaListenPort());
    }

    static BrokerConfig brokerConfig(JSONObject fields) {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName("bench");
        config.setBrokerIP1(LOOPBACK);
        config.setListenPort(fields.getIntValue("port"));
        return config;
    }

    /** {topic, queues, bodyBytes, count}: create the topic and put as many into it, in turn a batch into each queue. */
    private JSONObject fill(JSONObject fields) throws Exception {
        String topic = fields.getString("topic");
        int queues = fields.getIntValue("queues");
        broker.getTopicConfigManager().updateTopicConfig(new TopicConfig(topic, queues, queues));
        broker.registerBrokerAll(true, false, true);
        DefaultMessageStore store = (DefaultMessageStore) broker.getMessageStore();
        Messages messages = new Messages(fields);
        int count = fields.getIntValue("count");
        for (int number = 0; number < count; number += BATCH) {
            StoreAlone.check(store.putMessages(messages.batch(number, Math.min(BATCH, count - number), number / BATCH % queues)));
        }
        StoreAlone.awaitDispatch(store);
        return new JSONObject();
    }
}
