//! A peer that serves each connection on a thread of its own, for the benches of one connection.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Accepts on a port of the system for as long as the bench runs.
pub fn peer(serve: fn(TcpStream) -> io::Result<()>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(addr)
}
