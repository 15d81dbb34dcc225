package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import org.apache.rocketmq.store.DefaultMessageStore;

/** The store of a slave, without a broker: it copies the log of a master from its HA port, and dispatches it. */
final class Slaves {
    private static final long DEADLINE_NS = 120_000_000_000L;

    private DefaultMessageStore store;

    void addTo(Map<String, Main.Command> commands) {
        commands.put("slave.start", this::start);
        commands.put("slave.copied", this::copied);
        commands.put("slave.stop", this::stop);
    }

    /** {directory, settings, master}: settings are those of a broker.conf, brokerRole=SLAVE among them; master is an HA address. */
    private JSONObject start(JSONObject fields) throws Exception {
        store = StoreAlone.loaded(fields);
        store.start();
        store.getHaService().updateHaMasterAddress(fields.getString("master"));
        store.getHaService().getHAClient().wakeup(); // it looks every 5 s otherwise
        return new JSONObject();
    }

    /**
     * {end}: seconds from the first bytes of its log until it ends there, and until its queues and its index do, too. The 5 s
     * before the first report of a slave are left out.
     */
    private JSONObject copied(JSONObject fields) throws InterruptedException {
        long end = fields.getLongValue("end");
        long firstNs = await(Math.min(1, end));
        await(end);
        double logSeconds = Figures.secondsSince(firstNs);
        StoreAlone.awaitDispatch(store);
        return JSONObject.of("logSeconds", logSeconds, "seconds", Figures.secondsSince(firstNs));
    }

    /** Wait until its log ends there or behind; returns System.nanoTime(). */
    private long await(long end) throws InterruptedException {
        long begin = System.nanoTime();
        while (store.getMaxPhyOffset() < end) {
            if (System.nanoTime() - begin > DEADLINE_NS) {
                throw new IllegalStateException("the log ends at " + store.getMaxPhyOffset());
            }
            Thread.sleep(1);
        }
        return System.nanoTime();
    }

    private JSONObject stop(JSONObject fields) {
        store.shutdown();
        store = null;
        return new JSONObject();
    }
}
