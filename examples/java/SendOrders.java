import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends orders with RocketMQ's own client, and prints the status of each: SendOrders NAME_SERVER TOPIC COUNT PAUSE_MS
 *
 * After the first one it waits for a byte of its input.
 */
public final class SendOrders {
    private SendOrders() {}

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[2]);
        long pauseMs = Long.parseLong(args[3]);
        DefaultMQProducer producer = new DefaultMQProducer("pg_demo");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        for (int number = 1; number <= count; number++) {
            byte[] body = ("order " + number).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(args[1], "TagA", "ORD-" + number, body));
            System.out.println(result.getSendStatus());
            if (number == 1) {
                System.in.read();
            }
            Thread.sleep(pauseMs);
        }
        producer.shutdown();
        System.exit(0);
    }
}
