package rmqcompat;

import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The settings of one run, and stores opened with them. */
final class Setup {
    private static final long DISPATCH_DEADLINE_MS = 60_000;

    final BrokerConfig brokerConfig = new BrokerConfig();
    final MessageStoreConfig storeConfig = new MessageStoreConfig();
    private final NettyServerConfig serverConfig = new NettyServerConfig();
    private final Path root;

    Setup(String storeDir, String conf) throws IOException {
        root = Path.of(storeDir);
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(conf))) {
            properties.load(reader);
        }
        MixAll.properties2Object(properties, brokerConfig);
        MixAll.properties2Object(properties, storeConfig);
        MixAll.properties2Object(properties, serverConfig); // its port is part of the storeHost; nobody listens there
        storeConfig.setStorePathRootDir(storeDir);
        storeConfig.setStorePathCommitLog(root.resolve("commitlog").toString());
        storeConfig.setHaListenPort(0); // any free port: several tests may run at once, and nobody connects
    }

    /** A store after recovery, without any of its services: reads see exactly what recovery made of the files. */
    DefaultMessageStore loadedStore() throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(storeConfig,
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            brokerConfig, topics());
        if (!store.load()) {
            throw new Main.RefusedException("DefaultMessageStore.load() refused " + root);
        }
        return store;
    }

    /** A whole broker that has loaded the store; nothing of it is started. */
    BrokerController loadedBroker() throws Exception {
        BrokerController broker = new BrokerController(brokerConfig, serverConfig, new NettyClientConfig(), storeConfig);
        if (!broker.initialize()) {
            throw new Main.RefusedException("BrokerController.initialize() refused " + root);
        }
        return broker;
    }

    /** Start a store as a broker does, wait until everything is dispatched, hand it over, and stop it cleanly. */
    void withStartedStore(StoreTask task) throws Exception {
        DefaultMessageStore store = loadedStore();
        try {
            store.start();
        } catch (RuntimeException refused) { // the lock file is taken
            throw new Main.RefusedException("DefaultMessageStore.start() refused " + root + ": " + refused.getMessage());
        }
        awaitDispatch(store);
        task.run(store);
        awaitDispatch(store);
        store.shutdown();
    }

    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_DEADLINE_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(10);
        }
    }

    private ConcurrentMap<String, TopicConfig> topics() throws IOException {
        Path file = root.resolve("config").resolve("topics.json");
        if (!Files.exists(file)) {
            return new ConcurrentHashMap<>();
        }
        return RemotingSerializable.fromJson(Files.readString(file), TopicConfigSerializeWrapper.class).getTopicConfigTable();
    }

    /** What to do with a started store. */
    interface StoreTask {
        void run(DefaultMessageStore store) throws Exception;
    }
}
