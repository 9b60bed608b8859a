"""The programs that meet: Apache's name server, broker, Java client and mqadmin, and `windlass`.

Everything listens on 127.0.0.1 on ports that were free, keeps its files below the folder it is given, and is a `Child`.
"""
import json
import os
import re
import shutil
import subprocess

from processes import Child, Deadline, Failed, Tail, free_port, lines_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORK = os.environ.get("LIVE_WORK", os.path.join(HERE, ".work"))
VERSIONS = ("4.9.7", "5.3.3")
# Java 17: the store unmaps its files through closed packages, netty wants its own
OPENS = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
         "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
         "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"]


def lib(what):
    return os.path.join(WORK, f"lib-{what}")


def fetch(*what):
    os.makedirs(WORK, exist_ok=True)
    subprocess.run([os.path.join(HERE, "fetch"), *what], check=True, timeout=900)


def java_words(home, class_path, flags=()):
    return ["java", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", f"-Duser.home={home}", *OPENS, *flags,
            "-cp", ":".join(class_path)]


class Apache:
    """One name server and one broker of a release."""

    def __init__(self, version, folder, settings=()):
        self.version, self.folder, self.name = version, folder, f"Apache {version}"
        self.conf = os.path.join(folder, "conf")
        os.makedirs(self.conf, exist_ok=True)
        deadline = Deadline(120)
        port, broker_port = free_port(), free_port((-2, 1))
        self.name_server = f"127.0.0.1:{port}"
        self.configure(port, broker_port, settings)
        self.names = self.run("name-server", 256, "org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf")
        self.await_text(self.names, "boot success", deadline)
        self.broker = self.run("broker", 768, "org.apache.rocketmq.broker.BrokerStartup", "broker.conf",
                               "-XX:MaxDirectMemorySize=1g")
        self.await_text(self.broker, "boot success", deadline)
        # 5.3.3 says so a moment before its topics are registered
        Java(version).ready(self.name_server, folder, deadline)

    def configure(self, port, broker_port, settings):
        for name in ("logback_namesrv", "logback_broker", "logback_tools"):
            shutil.copy(os.path.join(HERE, "peer/conf/logback.xml"), os.path.join(self.conf, name + ".xml"))
        shutil.copy(os.path.join(HERE, "peer/conf/rmq.logback.xml"), self.conf)
        with open(os.path.join(HERE, "peer/conf/broker.conf.in")) as file:
            text = file.read()
        for word, value in (("@PORT@", broker_port), ("@NAMESRV@", port), ("@STORE@", self.folder + "/store")):
            text = text.replace(word, str(value))
        with open(os.path.join(self.conf, "broker.conf"), "w") as file:
            file.write("\n".join([text, *settings, ""]))
        with open(os.path.join(self.conf, "namesrv.conf"), "w") as file:
            file.write(f"listenPort={port}\nbindAddress=127.0.0.1\n")

    def run(self, name, heap, main, conf, *flags):
        words = java_words(self.folder, [self.conf, lib(self.version) + "/*"],
                           [f"-Xms{heap}m", f"-Xmx{heap}m", *flags, f"-Drocketmq.home.dir={self.folder}"])
        return Child(name, [*words, main, "-c", os.path.join(self.conf, conf)], self.folder,
                     env={"ROCKETMQ_HOME": self.folder})

    def await_text(self, child, text, deadline):
        def seen():
            if child.code is not None:
                raise Failed(f"{child.name} of {self.name} ended with {child.code}: {child.tail()}")
            return any(text in line for line in lines_of(child.out))
        deadline.until(seen, f"{child.name} of {self.name}")

    def stop(self):
        self.broker.kill()  # a test peer: nothing of it is looked at afterwards, and TERM takes 10 to 25 s
        self.names.kill()


class Windlass:
    """The binary under test."""

    path = os.environ.get("LIVE_WINDLASS", os.path.join(ROOT, "target/release/windlass"))

    @staticmethod
    def build():
        if "LIVE_WINDLASS" not in os.environ:
            subprocess.run(["cargo", "build", "--quiet", "--release", "--features", "cli", "--bin", "windlass"],
                           cwd=ROOT, check=True, timeout=900)

    name = "windlass"

    def produce(self, name_server, topic, count, folder, name="produce", first=0):
        """Bodies as lines of standard input, so that what arrives is what this script has written."""
        path = os.path.join(folder, name + ".in")
        os.makedirs(folder, exist_ok=True)
        from ledger import body
        with open(path, "w") as file:
            for n in range(first, first + count):
                file.write(body(n) + "\n")
        with open(path, "rb") as lines:
            return Child(name, [self.path, "produce", "-n", name_server, "-t", topic, "--json"], folder, stdin=lines)

    def consume(self, name_server, topic, group, folder, name="consume", words=()):
        return Child(name, [self.path, "consume", "-n", name_server, "-t", topic, "-g", group, "--from", "first",
                            "--json", "--batch", "16", *words], folder)

    def queues(self, child, topic):
        """How many queues of `topic` the events on its standard error say it holds."""
        held = set()
        for line in lines_of(child.err):
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event.get("topic") == topic and event.get("event") in ("assigned", "revoked"):
                place = (event["broker"], event["queue"])
                held.add(place) if event["event"] == "assigned" else held.discard(place)
        return len(held)


class Brokers:
    """`windlass broker`, one with the name server and as many more as wanted that join it."""

    def __init__(self, folder, names=("broker-a",), version="", words=()):
        self.version, self.folder, self.name = version, folder, "windlass"
        self.children, self.name_server, deadline = [], None, Deadline(30)
        for name in names:
            where = ["--join", self.name_server] if self.name_server else ["--name-server-listen", "127.0.0.1:0"]
            child = Child(name, [Windlass.path, "broker", "--listen", "127.0.0.1:0", *where, "--name", name, *words], folder)
            self.children.append(child)
            ready = deadline.until(lambda: self.ready_line(child), f"the ready line of {name}")
            self.name_server = self.name_server or ready.group(1)

    @staticmethod
    def ready_line(child):
        if child.code is not None:
            raise Failed(f"{child.name} ended with {child.code}: {child.tail()}")
        lines = lines_of(child.out)
        return re.fullmatch(r"ready name-server=(\S+) broker=(\S+)", lines[0]) if lines else None

    def stop(self):
        """SIGTERM, and it must end cleanly."""
        import signal
        for child in self.children:
            child.signal(signal.SIGTERM)
        for child in self.children:
            child.must(Deadline(20))


class Java:
    """Peer.java and mqadmin with the jars of a release."""

    def __init__(self, version):
        self.version, self.name = version, f"Java {version}"
        self.classes = os.path.join(WORK, f"classes-{version}")

    def compile(self):
        source, made = os.path.join(HERE, "Peer.java"), os.path.join(self.classes, "Peer.class")
        if not os.path.exists(made) or os.path.getmtime(made) < os.path.getmtime(source):
            os.makedirs(self.classes, exist_ok=True)
            subprocess.run(["javac", "-nowarn", "-d", self.classes, "-cp", lib(self.version) + "/*", source],
                           check=True, timeout=120, stderr=subprocess.PIPE)

    def run(self, name, folder, *words, heap=512):
        home = os.path.join(WORK, "home")
        flags = [f"-Xms{heap}m", f"-Xmx{heap}m", "-Drocketmq.client.logUseSlf4j=false"]
        path = [self.classes, os.path.join(HERE, "peer/conf"), lib(self.version) + "/*"]
        return Child(name, [*java_words(home, path, flags), "Peer", *words], folder)

    def ready(self, name_server, folder, deadline):
        self.compile()
        self.run("ready", folder, "ready", "-n", name_server, heap=64).must(deadline)

    def produce(self, name_server, topic, count, folder, name="produce", first=0, queues=None):
        """`queues`: it must know so many of the topic before it goes on."""
        self.compile()
        words = ["-e", queues] if queues else []
        return self.run(name, folder, "produce", "-n", name_server, "-t", topic, "-q", count, "-b", first, *words)

    def consume(self, name_server, topic, group, folder, name="consume", count=None):
        self.compile()
        child_ledger = os.path.join(folder, name + ".ledger")
        words = ["-q", count] if count else []
        child = self.run(name, folder, "consume", "-n", name_server, "-t", topic, "-g", group, "-l", child_ledger, *words)
        child.ledger = child_ledger
        return child

    def queues(self, child, _topic):
        held = [json.loads(line)["held"] for line in lines_of(child.out) if '"queues"' in line]
        return held[-1] if held else 0

    def admin(self, folder, deadline, *words):
        """The output of one mqadmin command."""
        home = os.path.join(WORK, f"home-admin-{self.version}")
        conf = os.path.join(home, "conf")
        os.makedirs(conf, exist_ok=True)
        shutil.copy(os.path.join(HERE, "peer/conf/logback.xml"), os.path.join(conf, "logback_tools.xml"))
        shutil.copy(os.path.join(HERE, "peer/conf/rmq.logback.xml"), conf)
        flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logUseSlf4j=false"]
        child = Child(f"mqadmin-{words[0]}", [*java_words(home, [conf, lib(self.version) + "/*"], flags),
                      "org.apache.rocketmq.tools.command.MQAdminStartup", *words], folder, env={"ROCKETMQ_HOME": home})
        code = child.wait(deadline)
        text = "\n".join(lines_of(child.out) + lines_of(child.err))
        if code != 0 or "Exception" in text:
            raise Failed(f"mqadmin {' '.join(map(str, words))} ended with {code}: {text[-2000:]}")
        return text

    def progress(self, name_server, group, folder, deadline):
        """Messages that `group` has not consumed yet, as the broker sees it."""
        text = self.admin(folder, deadline, "consumerProgress", "-n", name_server, "-g", group)
        found = re.search(r"Diff Total: (-?\d+)", text)
        if not found:
            raise Failed(f"consumerProgress has no total: {text[-1000:]}")
        return int(found.group(1))
