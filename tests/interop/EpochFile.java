import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.store.ha.autoswitch.EpochFileCache;

/** Arguments: an epoch file, and an entry to append (epoch, start) or none. Prints the entries. */
public class EpochFile {
    public static void main(String[] arguments) {
        EpochFileCache cache = new EpochFileCache(arguments[0]);
        if (!cache.initCacheFromFile()) {
            System.out.println("refused");
            return;
        }
        if (arguments.length > 1) {
            cache.appendEntry(
                new EpochEntry(Integer.parseInt(arguments[1]), Long.parseLong(arguments[2])));
        }
        StringBuilder found = new StringBuilder();
        for (EpochEntry entry : cache.getAllEntries()) {
            found.append(entry.getEpoch()).append('-').append(entry.getStartOffset()).append(' ');
        }
        System.out.println(found.toString().trim());
    }
}
