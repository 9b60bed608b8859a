// An unmodified Java client (rocketmq-client 4.9.x or 5.x) as one end of a live check.
//
//   Peer ready   -n HOST:PORT [-s SECONDS]                 ends when a broker is registered that makes topics
//   Peer produce -n HOST:PORT -t TOPIC -q COUNT [-b FIRST] [-z BYTES] [-w THREADS] [-e QUEUES]
//   Peer consume -n HOST:PORT -t TOPIC -g GROUP -l LEDGER [-q COUNT] [-z BYTES] [-m BATCH]
//
// With -e the producer goes on after its first message only once it knows so many queues: if the name server is slow to
// answer, or several threads ask at once, Java's producer takes the queues of the template topic instead, which may be fewer.
// Message n has the body "n n n ..." cut at BYTES. The consumer checks every body and writes a line
// "n broker queue offset" to LEDGER for each; it ends when it has COUNT different ones, or at the end of its standard input.
// It prints {"event":"queues","held":K} whenever the number of its queues changes. The last line is one JSON object.
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.function.IntConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

public class Peer {
    static final Map<String, String> opt = new HashMap<>();
    static int num(String key, int or) { return opt.containsKey(key) ? Integer.parseInt(opt.get(key)) : or; }
    static String text(String key) { return Objects.requireNonNull(opt.get(key), "missing " + key); }
    static String client() { return MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION); }

    static byte[] body(int n, int size) {
        byte[] word = (n + " ").getBytes(StandardCharsets.US_ASCII), body = new byte[size];
        for (int i = 0; i < size; i++) body[i] = word[i % word.length];
        return body;
    }
    static int numberOf(byte[] body) {
        int n = 0;
        for (byte b : body) { if (b == ' ') break; if (b < '0' || b > '9') return -1; n = n * 10 + b - '0'; }
        return n;
    }

    public static void main(String[] a) throws Exception {
        for (int i = 1; i + 1 < a.length; i += 2) opt.put(a[i], a[i + 1]);
        int code = 2;
        switch (a.length == 0 ? "" : a[0]) {
            case "ready": code = ready(); break;
            case "produce": code = produce(); break;
            case "consume": code = consume(); break;
            default: System.err.println("usage: Peer ready|produce|consume, see the head of Peer.java");
        }
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }

    static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("live-" + System.nanoTime());
        p.setNamesrvAddr(text("-n"));
        p.setClientIP("127.0.0.1");
        p.setSendMsgTimeout(10_000);
        p.setPollNameServerInterval(1000);
        p.start();
        return p;
    }

    static int ready() throws Exception {
        DefaultMQProducer p = producer();
        long end = System.currentTimeMillis() + num("-s", 60) * 1000L;
        while (System.currentTimeMillis() < end) {
            try { if (!p.fetchPublishMessageQueues("TBW102").isEmpty()) return 0; } catch (Exception notYet) { /* asked again */ }
            Thread.sleep(100);
        }
        return 1;
    }

    static int produce() throws Exception {
        DefaultMQProducer p = producer();
        int count = num("-q", 100_000), first = num("-b", 0), size = num("-z", 1024), threads = num("-w", 16);
        AtomicInteger next = new AtomicInteger(), sent = new AtomicInteger(), failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        IntConsumer send = i -> {
            try {
                SendResult r = p.send(new Message(text("-t"), "live", "key" + (first + i), body(first + i, size)));
                if (r.getSendStatus() == SendStatus.SEND_OK) sent.incrementAndGet(); else failed.incrementAndGet();
            } catch (Exception e) { if (failed.getAndIncrement() < 3) e.printStackTrace(); }
        };
        if (opt.containsKey("-e") && count > 0) {
            send.accept(next.getAndIncrement());
            long end = System.currentTimeMillis() + 60_000;
            while (p.getDefaultMQProducerImpl().getTopicPublishInfoTable().get(text("-t")).getMessageQueueList().size() != num("-e", 0)) {
                if (System.currentTimeMillis() > end) { System.err.println("the producer does not find its queues"); return 1; }
                Thread.sleep(100);
            }
        }
        for (int t = 0; t < threads; t++) new Thread(() -> {
            for (int i; (i = next.getAndIncrement()) < count; ) send.accept(i);
            done.countDown();
        }).start();
        done.await();
        System.out.printf(Locale.ROOT, "{\"mode\":\"produce\",\"client\":\"%s\",\"sent\":%d,\"failed\":%d,\"seconds\":%.3f}%n",
            client(), sent.get(), failed.get(), (System.nanoTime() - start) / 1e9);
        p.shutdown();
        return failed.get() == 0 ? 0 : 1;
    }

    static int consume() throws Exception {
        int count = num("-q", Integer.MAX_VALUE), size = num("-z", 1024);
        BufferedWriter ledger = Files.newBufferedWriter(Paths.get(text("-l")));
        Set<Integer> seen = ConcurrentHashMap.newKeySet();
        AtomicLong received = new AtomicLong(), bad = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        AtomicBoolean closed = new AtomicBoolean();
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(text("-g"));
        c.setNamesrvAddr(text("-n"));
        c.setClientIP("127.0.0.1");
        c.setInstanceName("live-" + System.nanoTime());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setConsumeMessageBatchMaxSize(num("-m", 16));
        c.subscribe(text("-t"), "*");
        c.registerMessageListener((MessageListenerConcurrently) (msgs, x) -> {
            for (MessageExt m : msgs) {
                int n = numberOf(m.getBody());
                if (!Arrays.equals(m.getBody(), body(n, size))) bad.incrementAndGet();
                received.incrementAndGet();
                synchronized (ledger) {
                    try { ledger.write(n + " " + x.getMessageQueue().getBrokerName() + " " + m.getQueueId() + " " + m.getQueueOffset() + "\n"); }
                    catch (IOException e) { bad.incrementAndGet(); }
                }
                if (seen.add(n) && seen.size() >= count) done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long start = System.nanoTime();
        c.start();
        Thread watch = new Thread(() -> {
            for (int held = 0; ; ) {
                int now = 0;
                for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet())
                    if (q.getTopic().equals(text("-t"))) now++;
                if (now != held) { held = now; System.out.println("{\"event\":\"queues\",\"held\":" + held + "}"); System.out.flush(); }
                synchronized (ledger) { try { if (!closed.get()) ledger.flush(); } catch (IOException e) { bad.incrementAndGet(); } }
                try { Thread.sleep(100); } catch (InterruptedException e) { return; }
            }
        });
        watch.setDaemon(true);
        watch.start();
        Thread input = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (IOException e) { /* as the end */ }
            done.countDown();
        });
        input.setDaemon(true);
        input.start();
        done.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        if (count == Integer.MAX_VALUE) c.setAwaitTerminationMillisWhenShutdown(5000); // what runs is finished before the offsets go out
        else Thread.sleep(300);
        c.shutdown();
        synchronized (ledger) { closed.set(true); ledger.close(); }
        System.out.printf(Locale.ROOT, "{\"mode\":\"consume\",\"client\":\"%s\",\"received\":%d,\"distinct\":%d,\"bad_bodies\":%d,\"seconds\":%.3f}%n",
            client(), received.get(), seen.size(), bad.get(), seconds);
        return bad.get() == 0 && (count == Integer.MAX_VALUE || seen.size() >= count) ? 0 : 1;
    }
}
