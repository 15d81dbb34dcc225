package rmqbench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Measures RocketMQ's released classes: one command a line on standard input, one answer a line on standard output.
 *
 * <p>A command is a JSON object, {"do": its name, ...}; the fields are described where it is defined. The answer is {"ok":
 * {figures}} or {"error": a text}. The process ends with its input; every process knows all commands, so that a name server, a
 * broker, a client and a store without a broker are four processes of this program.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // nothing that a library prints may get between the answers
        // As their own main methods do: a name server takes a broker without a version for one that is too old to have topics.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        Map<String, Command> commands = new HashMap<>();
        new StoreAlone().addTo(commands);
        new Servers().addTo(commands);
        new Delays().addTo(commands);
        new Consumers().addTo(commands);
        new Clients().addTo(commands);
        new Slaves().addTo(commands);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(answer(commands, JSON.parseObject(line)));
        }
        Runtime.getRuntime().halt(0); // nobody looks at what is left, and a broker takes seconds to stop
    }

    private static JSONObject answer(Map<String, Command> commands, JSONObject command) {
        Command chosen = commands.get(command.getString("do"));
        if (chosen == null) {
            return JSONObject.of("error", "unknown command " + command.getString("do"));
        }
        try {
            return JSONObject.of("ok", chosen.run(command));
        } catch (Throwable failure) {
            failure.printStackTrace();
            return JSONObject.of("error", failure.toString());
        }
    }

    /** Does one thing that was asked for and says what it took. */
    interface Command {
        JSONObject run(JSONObject fields) throws Exception;
    }
}
