import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What RocketMQ's own classes say: each line has a condition and then names and values of
 * properties, all in base64 with tabs between. Answers T for a match, F for none, E for a condition
 * that cannot be parsed.
 */
public class Conditions {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            Map<String, String> properties = new HashMap<>();
            for (int i = 1; i + 1 < fields.length; i += 2) {
                properties.put(text(fields[i]), text(fields[i + 1]));
            }
            answers.append(answer(text(fields[0]), properties));
        }
        System.out.println(answers);
    }

    private static char answer(String condition, Map<String, String> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(condition);
        } catch (Throwable problem) {
            return 'E';
        }
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return Boolean.TRUE.equals(value) ? 'T' : 'F';
        } catch (Throwable problem) {  // as the broker does
            return 'F';
        }
    }

    private static String text(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }
}
