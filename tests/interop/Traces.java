import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.TreeSet;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;

/**
 * RocketMQ's own reader and writer of traces: reads bodies, one a line in Base64, and prints for
 * all of them, in Base64, what its writer makes of what its reader found, and the keys, sorted.
 */
public class Traces {
    public static void main(String[] args) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String body = new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
            StringBuilder again = new StringBuilder();
            TreeSet<String> keys = new TreeSet<>();
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(body)) {
                context.setAccessChannel(AccessChannel.LOCAL);
                TraceTransferBean bean = TraceDataEncoder.encoderFromContextBean(context);
                again.append(bean.getTransData());
                keys.addAll(bean.getTransKey());
            }
            again.append((char) 3).append(String.join(String.valueOf((char) 4), keys));
            byte[] text = again.toString().getBytes(StandardCharsets.UTF_8);
            out.append(Base64.getEncoder().encodeToString(text)).append(' ');
        }
        System.out.println(out);
    }
}
