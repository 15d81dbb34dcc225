package rmqbench;

import com.alibaba.fastjson2.JSONObject;
import java.util.Arrays;

/** Figures of answers. */
final class Figures {
    private Figures() {
    }

    static double secondsSince(long startNs) {
        return (System.nanoTime() - startNs) / 1e9;
    }

    /** p50 and p99 of times, in us, and the mean. */
    static JSONObject ofTimes(long[] timesNs) {
        long[] sorted = timesNs.clone();
        Arrays.sort(sorted);
        return JSONObject.of(
            "p50Us", sorted[sorted.length / 2] / 1e3,
            "p99Us", sorted[(int) (sorted.length * 0.99)] / 1e3,
            "meanUs", Arrays.stream(sorted).average().orElseThrow() / 1e3);
    }
}
