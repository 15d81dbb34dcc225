package rmqcompat;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Lets RocketMQ's released classes work on a store directory, for tests that compare them with ours.
 *
 * <pre>
 *   dump     storeDir conf               recover the store and print every queue, message and answer
 *   append   storeDir conf count topic.. put messages of every kind, then stop cleanly
 *   random   storeDir conf count seed topic.. put random messages, say of each what was put, then stop cleanly
 *   dispatch storeDir conf               start, let the dispatch catch up, stop cleanly
 *   hold     storeDir conf               start and stay until standard input ends
 *   broker   storeDir conf               let a whole broker load the store and print the tables it sees
 *   retry    storeDir conf               let a whole broker work on the store (see BrokerAtWork), print its tables and dump
 * </pre>
 *
 * conf is a broker.conf (Java properties); storeDir overrides its paths. Answers are JSON objects, one a line, on standard
 * output. dump reads questions from standard input in the same form: {"topic", "key"} asks the index (maxNum, begin and end as
 * in a broker's query), {"topic", "queueId", "timestamp", "boundary": "LOWER" or "UPPER"} asks for an offset by time.
 * Exit code 0; 1 if something failed; 2 if RocketMQ refused the store.
 *
 * <p>RocketMQ changes what it opens: give it a copy.
 */
public final class Main {
    private static PrintStream answers;

    private Main() {
    }

    static void answer(Map<String, Object> fields) {
        answers.println(JSON.toJSONString(fields, JSONWriter.Feature.WriteNonStringKeyAsString));
    }

    static List<Map<String, Object>> questions() throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        return lines.lines().filter(line -> !line.isBlank()).<Map<String, Object>>map(JSON::parseObject).toList();
    }

    public static void main(String[] args) throws IOException {
        answers = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // nothing that a library prints may get between the answers
        int code;
        try {
            run(args[0], args[1], args[2], Arrays.asList(args).subList(3, args.length));
            code = 0;
        } catch (RefusedException refused) {
            System.err.println(refused.getMessage());
            code = 2;
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        answers.flush();
        System.exit(code); // the store's threads are no daemons, and only some commands stop them
    }

    private static void run(String command, String storeDir, String conf, List<String> rest) throws Exception {
        Setup setup = new Setup(storeDir, conf);
        switch (command) {
            case "dump" -> new Dump(setup.loadedStore(), questions()).run();
            case "append" -> setup.withStartedStore(store -> new Appender(store).run(Integer.parseInt(rest.get(0)), rest.subList(1, rest.size())));
            case "random" -> setup.withStartedStore(store ->
                new RandomAppender(store, Long.parseLong(rest.get(1)), rest.subList(2, rest.size())).run(Integer.parseInt(rest.get(0))));
            case "dispatch" -> setup.withStartedStore(store -> answer(Map.of("kind", "dispatched", "maxPhyOffset", store.getMaxPhyOffset())));
            case "hold" -> setup.withStartedStore(store -> {
                answer(Map.of("kind", "ready"));
                answers.flush();
                System.in.readAllBytes();
            });
            case "broker" -> BrokerView.print(setup);
            case "retry" -> BrokerAtWork.run(setup, questions());
            default -> throw new IllegalArgumentException("unknown command " + command);
        }
    }

    /** RocketMQ says that it cannot open this store. */
    static final class RefusedException extends Exception {
        private static final long serialVersionUID = 1L;

        RefusedException(String message) {
            super(message);
        }
    }
}
