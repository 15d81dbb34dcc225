import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The admin client of RocketMQ's dashboard and exporter, one call a line: a method and its arguments with tabs between,
 * then -n and the name server. It prints the result as JSON, or the error, and the line END.
 */
public class Dashboard {
    private static DefaultMQAdminExt admin;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            begin(words[words.length - 1]);
            try {
                Object found = call(words[0], Arrays.copyOfRange(words, 1, words.length - 2));
                System.out.println(RemotingSerializable.toJson(found, false));
            } catch (InvocationTargetException error) {
                System.out.println(String.valueOf(error.getCause()).replace('\n', ' '));
            } catch (NoSuchMethodException error) {
                System.out.println(error);
            }
            System.out.println("END");
            System.out.flush();
        }
        admin.shutdown();
        System.exit(0);
    }

    private static void begin(String nameServer) throws Exception {
        if (admin != null)
            return;
        admin = new DefaultMQAdminExt(20_000);
        admin.setNamesrvAddr(nameServer);
        admin.start();
    }

    private static Object call(String name, String[] words) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (!method.getName().equals(name) || method.getParameterCount() != words.length)
                continue;
            Object[] values = new Object[words.length];
            boolean fits = true;
            for (int at = 0; fits && at < words.length; at++)
                fits = (values[at] = value(method.getParameterTypes()[at], words[at])) != null;
            if (fits)
                return method.invoke(admin, values);
        }
        throw new NoSuchMethodException(name);
    }

    private static Object value(Class<?> type, String word) {
        if (type == String.class)
            return word;
        if (type == boolean.class)
            return word.matches("true|false") ? Boolean.valueOf(word) : null;
        if (type == List.class)
            return Arrays.asList(word.split(";"));
        if (!word.matches("-?[0-9]+"))
            return null;
        return type == long.class ? (Object) Long.valueOf(word) : type == int.class ? Integer.valueOf(word) : null;
    }
}
