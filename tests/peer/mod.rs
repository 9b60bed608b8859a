//! A peer written by hand: a name server or broker whose every answer a test decides. It reads and writes frames by
//! itself, so that a mistake in the library's codec cannot hide here.

// Each test file compiles this for itself and uses only a part of it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod obedient;
pub mod queue;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// Longest time any wait of a test may take before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A command as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub version: i32,
    pub remark: Option<String>,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// Counts the peer's connections from 0.
    pub connection: u32,
    pub binary: bool,
}

impl Request {
    /// A field, or the empty text.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub fn is_oneway(&self) -> bool {
        self.flag & 2 != 0
    }

    /// One property of the properties text in field `i` of a send.
    pub fn property(&self, name: &str) -> Option<&str> {
        let text = self.field("i");
        text.split('\u{2}').filter_map(|piece| piece.split_once('\u{1}')).find(|(n, _)| *n == name).map(|(_, v)| v)
    }
}

/// What a peer does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Answers.
    Answer { code: i32, remark: Option<String>, fields: BTreeMap<String, String>, body: Vec<u8> },
    /// Answers nothing and keeps the connection.
    Silence,
    /// Closes the connection.
    Close,
    /// Writes these bytes as they are.
    Bytes(Vec<u8>),
}

impl Reply {
    /// An answer with a code and nothing else.
    pub fn code(code: i32) -> Self {
        Self::Answer { code, remark: None, fields: BTreeMap::new(), body: Vec::new() }
    }

    pub fn with_fields<const N: usize>(code: i32, fields: [(&str, &str); N]) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self::Answer { code, remark: None, fields, body: Vec::new() }
    }

    pub fn with_body(body: impl Into<Vec<u8>>) -> Self {
        Self::Answer { code: 0, remark: None, fields: BTreeMap::new(), body: body.into() }
    }

    /// What a broker answers to a send that it has stored.
    pub fn stored(code: i32, queue: &str, offset: i64) -> Self {
        let id = format!("7F00000100002A9F{offset:016X}");
        Self::with_fields(code, [("msgId", &id), ("queueId", queue), ("queueOffset", &offset.to_string())])
    }
}

/// A listener whose connections are served by one function.
pub struct Peer {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Request>>,
    grown: Condvar,
    streams: Mutex<Vec<TcpStream>>,
    connections: AtomicU32,
    closed: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// Starts to listen on a free port of the loopback.
    pub fn start(serve: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            grown: Condvar::new(),
            streams: Mutex::default(),
            connections: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        });
        let (common, serve) = (shared.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if common.closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let number = common.connections.fetch_add(1, Ordering::SeqCst);
                held(&common.streams).push(stream.try_clone().unwrap());
                let (common, serve) = (common.clone(), serve.clone());
                std::thread::spawn(move || conversation(stream, number, &common, &*serve));
            }
        });
        Self { addr, shared }
    }

    /// A peer that is a name server and one broker: every topic has `queues` queues on it, `send` answers what is sent.
    pub fn cluster(queues: i32, send: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let own: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let known = own.clone();
        let peer = Self::start(move |request| match request.code {
            105 => Reply::with_body(route(&[("broker-a", held(&known).unwrap(), queues)])),
            10 | 310 | 320 => send(request),
            _ => housekeeping(request),
        });
        *held(&own) = Some(peer.addr);
        peer
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `host:port`.
    pub fn text(&self) -> String {
        self.addr.to_string()
    }

    /// Everything that came, in order of arrival.
    pub fn seen(&self) -> Vec<Request> {
        held(&self.shared.seen).clone()
    }

    /// What came with this code.
    pub fn seen_of(&self, code: i32) -> Vec<Request> {
        self.seen().into_iter().filter(|request| request.code == code).collect()
    }

    /// Waits until `done` is true of what has come; panics after [`PATIENCE`].
    pub fn wait(&self, what: &str, done: impl Fn(&[Request]) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut seen = held(&self.shared.seen);
        while !done(&seen) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never came: {what}; came: {:?}", seen.iter().map(|r| r.code).collect::<Vec<_>>());
            seen = self.shared.grown.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connections that were ever accepted.
    pub fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Closes every connection; the listener stays.
    pub fn drop_connections(&self) {
        for stream in held(&self.shared.streams).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        self.drop_connections();
    }
}

/// What any broker or name server answers to what is not the matter of a test.
pub fn housekeeping(request: &Request) -> Reply {
    match request.code {
        34 | 35 | 15 => Reply::with_fields(0, []),
        38 => Reply::with_body(r#"{"consumerIdList":[]}"#),
        14 => Reply::with_fields(22, []),
        _ if request.is_oneway() => Reply::Silence,
        _ => Reply::code(3),
    }
}

/// The JSON of a route: broker name, address of its master, number of queues.
pub fn route(brokers: &[(&str, SocketAddr, i32)]) -> String {
    let datas: Vec<Value> = brokers
        .iter()
        .map(|(name, addr, _)| json!({"brokerAddrs": {"0": addr.to_string()}, "brokerName": name, "cluster": "C"}))
        .collect();
    let queues: Vec<Value> = brokers
        .iter()
        .map(|(name, _, n)| json!({"brokerName": name, "perm": 6, "readQueueNums": n, "topicSysFlag": 0, "writeQueueNums": n}))
        .collect();
    json!({"brokerDatas": datas, "filterServerTable": {}, "queueDatas": queues}).to_string()
}

/// An address of the loopback at which nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

fn conversation(mut stream: TcpStream, number: u32, shared: &Shared, serve: &dyn Fn(&Request) -> Reply) {
    let _ = stream.set_nodelay(true);
    while let Ok(mut request) = read(&mut stream) {
        request.connection = number;
        held(&shared.seen).push(request.clone());
        shared.grown.notify_all();
        let wrote = match serve(&request) {
            Reply::Answer { code, remark, fields, body } if !request.is_oneway() => {
                stream.write_all(&response(&request, code, remark.as_deref(), &fields, &body))
            }
            Reply::Answer { .. } | Reply::Silence => Ok(()),
            Reply::Bytes(bytes) => stream.write_all(&bytes),
            Reply::Close => break,
        };
        if wrote.is_err() {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// A whole frame that answers `request`, with a JSON header as Apache's brokers write it.
pub fn response(
    request: &Request,
    code: i32,
    remark: Option<&str>,
    fields: &BTreeMap<String, String>,
    body: &[u8],
) -> Vec<u8> {
    let header = json!({
        "code": code, "extFields": fields, "flag": 1, "language": "JAVA", "opaque": request.opaque,
        "remark": remark, "serializeTypeCurrentRPC": "JSON", "version": 479,
    });
    frame(&header, body)
}

/// A frame with this JSON header.
pub fn frame(header: &Value, body: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&u32::try_from(4 + header.len() + body.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(header.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn read(stream: &mut TcpStream) -> io::Result<Request> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    let mut content = vec![0; u32::from_be_bytes(word) as usize];
    stream.read_exact(&mut content)?;
    let (kind, len) = (content[0], u32::from_be_bytes([0, content[1], content[2], content[3]]) as usize);
    let (header, body) = content[4..].split_at(len);
    let mut request = match kind {
        0 => from_json(header),
        1 => from_binary(header),
        other => panic!("serialize type {other}"),
    };
    request.body = body.to_vec();
    Ok(request)
}

fn from_json(header: &[u8]) -> Request {
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a strict JSON header");
    let number = |name: &str| header.get(name).and_then(Value::as_i64).unwrap_or(0) as i32;
    let fields = header.get("extFields").and_then(Value::as_object).into_iter().flatten();
    Request {
        code: number("code"),
        opaque: number("opaque"),
        flag: number("flag"),
        version: number("version"),
        remark: header.get("remark").and_then(Value::as_str).map(str::to_owned),
        fields: fields.map(|(name, value)| (name.clone(), value.as_str().expect("a text").to_owned())).collect(),
        body: Vec::new(),
        connection: 0,
        binary: false,
    }
}

fn from_binary(header: &[u8]) -> Request {
    let mut rest = header;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head.to_vec()
    };
    let code = i32::from(i16::from_be_bytes(take(2).try_into().unwrap()));
    take(1);
    let version = i32::from(i16::from_be_bytes(take(2).try_into().unwrap()));
    let int = |bytes: Vec<u8>| i32::from_be_bytes(bytes.try_into().unwrap());
    let (opaque, flag) = (int(take(4)), int(take(4)));
    let remark_len = int(take(4)) as usize;
    let remark = take(remark_len);
    let mut left = int(take(4)) as usize;
    let mut fields = BTreeMap::new();
    while left > 0 {
        let name_len = u16::from_be_bytes(take(2).try_into().unwrap()) as usize;
        let name = take(name_len);
        let value_len = int(take(4)) as usize;
        let value = take(value_len);
        left -= 6 + name_len + value_len;
        fields.insert(String::from_utf8(name).unwrap(), String::from_utf8(value).unwrap());
    }
    Request {
        code,
        opaque,
        flag,
        version,
        remark: (remark_len > 0).then(|| String::from_utf8(remark).unwrap()),
        fields,
        body: Vec::new(),
        connection: 0,
        binary: true,
    }
}

/// A client written by hand: one connection on which it asks and hears whatever comes.
pub struct Caller {
    stream: TcpStream,
    /// That of the last request; a test may set it.
    pub opaque: i32,
    /// Commands that came while an answer was waited for: requests of the broker, answers to other requests.
    pub heard: Vec<Request>,
    /// Writes binary headers.
    pub binary: bool,
    /// The version it announces.
    pub version: i32,
}

impl Caller {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, opaque: 0, heard: Vec::new(), binary: false, version: 479 }
    }

    /// Writes a request and gives its opaque.
    pub fn post(&mut self, code: i32, flag: i32, fields: &[(&str, &str)], body: &[u8]) -> i32 {
        self.opaque = self.opaque.wrapping_add(1);
        let bytes = self.request(code, flag, fields, body);
        self.stream.write_all(&bytes).unwrap();
        self.opaque
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Request {
        let opaque = self.post(code, 0, fields, body);
        self.answer_to(opaque)
    }

    /// Waits for the answer to a request that was posted.
    pub fn answer_to(&mut self, opaque: i32) -> Request {
        let is_it = |command: &Request| command.flag & 1 != 0 && command.opaque == opaque;
        if let Some(at) = self.heard.iter().position(is_it) {
            return self.heard.remove(at);
        }
        loop {
            let command = self.hear().expect("an answer");
            if is_it(&command) {
                return command;
            }
            self.heard.push(command);
        }
    }

    /// Waits for a request of the broker with this code.
    pub fn asked(&mut self, code: i32) -> Request {
        let is_it = |command: &Request| command.flag & 1 == 0 && command.code == code;
        if let Some(at) = self.heard.iter().position(is_it) {
            return self.heard.remove(at);
        }
        loop {
            let command = self.hear().expect("a request");
            if is_it(&command) {
                return command;
            }
            self.heard.push(command);
        }
    }

    /// The next command, or what the socket says.
    pub fn hear(&mut self) -> io::Result<Request> {
        read(&mut self.stream)
    }

    /// The next command within `most`; `None` if nothing came.
    pub fn hear_within(&mut self, most: Duration) -> Option<Request> {
        self.stream.set_read_timeout(Some(most)).unwrap();
        let heard = self.hear().ok();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        heard
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Our end of the connection.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    fn request(&self, code: i32, flag: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        if self.binary {
            return self.binary_request(code, flag, fields, body);
        }
        let fields: BTreeMap<&str, &str> = fields.iter().copied().collect();
        let header = json!({
            "code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": self.opaque,
            "serializeTypeCurrentRPC": "JSON", "version": self.version,
        });
        frame(&header, body)
    }

    fn binary_request(&self, code: i32, flag: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut map = Vec::new();
        for (name, value) in fields {
            map.extend_from_slice(&u16::try_from(name.len()).unwrap().to_be_bytes());
            map.extend_from_slice(name.as_bytes());
            map.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
            map.extend_from_slice(value.as_bytes());
        }
        let mut header = i16::try_from(code).unwrap().to_be_bytes().to_vec();
        header.push(0);
        header.extend_from_slice(&i16::try_from(self.version).unwrap().to_be_bytes());
        header.extend_from_slice(&self.opaque.to_be_bytes());
        header.extend_from_slice(&flag.to_be_bytes());
        header.extend_from_slice(&0u32.to_be_bytes());
        header.extend_from_slice(&u32::try_from(map.len()).unwrap().to_be_bytes());
        header.extend_from_slice(&map);
        let mut bytes = u32::try_from(4 + header.len() + body.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(&(u32::try_from(header.len()).unwrap() | 1 << 24).to_be_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(body);
        bytes
    }
}
