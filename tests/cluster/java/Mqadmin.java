import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The released mqadmin, one command a line: its arguments with tabs between. Behind the output comes the line END. */
public class Mqadmin {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println("\nEND");
            System.out.flush();
        }
        System.exit(0);
    }
}
