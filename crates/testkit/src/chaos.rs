//! A TCP proxy that does to a connection what networks do: delays, silence, resets, drips and cuts, as it is told. It holds one
//! piece of at most 16 KiB per direction.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What is done to the answers, on old connections and new ones, from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// They come so much later.
    Late(Duration),
    /// They do not come, and nothing is passed on.
    Silence,
    /// All connections are reset, new ones too.
    Reset,
    /// One byte at a time, with a pause after each.
    Drip(Duration),
    /// After so many bytes more on a connection it is reset.
    CutAfter(usize),
    /// Messages of channels (RESP3) get lost, and nothing else does.
    Deaf,
    /// Something comes in their place that is no answer in the protocol.
    Garbage,
}

/// A running proxy. Ends with its value.
pub struct Chaos {
    addr: SocketAddr,
    fault: watch::Sender<Fault>,
    // ends with its value, and all connections with it
    _accepting: JoinSet<()>,
}

impl Chaos {
    /// A proxy in front of `target`. Runs on the runtime of the caller.
    ///
    /// # Panics
    /// When there is no port for it.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.unwrap_or_else(|error| panic!("chaos: no port: {error}"));
        let addr = listener.local_addr().unwrap_or_else(|error| panic!("chaos: no address: {error}"));
        let (fault, faults) = watch::channel(Fault::None);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(relay(client, target, faults.clone()));
            }
        });
        Self { addr, fault, _accepting: accepting }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

async fn relay(client: TcpStream, target: SocketAddr, faults: watch::Receiver<Fault>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    // whatever ends, ends with a reset
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_zero_linger();
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut ending = faults.clone();
    tokio::select! {
        _ = requests(from_client, to_server, faults.clone()) => {}
        _ = answers(from_server, to_client, faults) => {}
        _ = ending.wait_for(|fault| *fault == Fault::Reset) => {}
    }
}

/// Waits until things are passed on again.
async fn unless_silent(faults: &mut watch::Receiver<Fault>) -> io::Result<Fault> {
    let fault = faults.wait_for(|fault| *fault != Fault::Silence).await;
    fault.map(|fault| *fault).map_err(|_| io::ErrorKind::BrokenPipe.into())
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut faults: watch::Receiver<Fault>,
) -> io::Result<()> {
    let mut piece = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        unless_silent(&mut faults).await?;
        to.write_all(&piece[..length]).await?;
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut faults: watch::Receiver<Fault>,
) -> io::Result<()> {
    let mut piece = vec![0; 16 << 10];
    let mut passed = 0;
    let mut held = Vec::new();
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        held.extend_from_slice(&piece[..length]);
        let fault = unless_silent(&mut faults).await?;
        let passing =
            if fault == Fault::Deaf { without_messages(&mut held) } else { std::mem::take(&mut held) };
        let mut piece = &passing[..];
        match fault {
            Fault::Late(delay) => tokio::time::sleep(delay).await,
            Fault::Drip(pause) => {
                while let Some((first, rest)) = piece.split_first() {
                    if !matches!(*faults.borrow(), Fault::Drip(_)) {
                        break;
                    }
                    to.write_all(&[*first]).await?;
                    tokio::time::sleep(pause).await;
                    piece = rest;
                }
            }
            Fault::CutAfter(most) if passed + piece.len() > most => {
                to.write_all(&piece[..most.saturating_sub(passed)]).await?;
                return Ok(());
            }
            Fault::CutAfter(_) => passed += piece.len(),
            Fault::Garbage => piece = b"?what\r\n",
            Fault::None | Fault::Silence | Fault::Reset | Fault::Deaf => {}
        }
        to.write_all(piece).await?;
    }
}

/// How a message of a channel begins.
const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n";

/// Takes out what can be passed on: all but whole messages, and but for an end that may be the beginning of one.
fn without_messages(held: &mut Vec<u8>) -> Vec<u8> {
    let mut passing = Vec::new();
    while let Some(at) = held.windows(MESSAGE.len()).position(|window| window == MESSAGE) {
        passing.extend(held.drain(..at));
        let Some(end) = bulk_end(held, MESSAGE.len()).and_then(|channel| bulk_end(held, channel)) else {
            return passing;
        };
        held.drain(..end);
    }
    let open = (1..MESSAGE.len()).rev().find(|&length| held.ends_with(&MESSAGE[..length])).unwrap_or(0);
    passing.extend(held.drain(..held.len() - open));
    passing
}

/// Where the bulk string that begins at `from` ends, if it is there to its end.
fn bulk_end(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let digits = rest.windows(2).position(|window| window == b"\r\n")?;
    let length: usize = std::str::from_utf8(rest.get(1..digits)?).ok()?.parse().ok()?;
    let end = from + digits + 2 + length + 2;
    (end <= bytes.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_out_wherever_they_are_cut() {
        let stream = b"+OK\r\n>3\r\n$7\r\nmessage\r\n$2\r\n{}\r\n$4\r\na\r\nb\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$0\r\n\r\n>3\r\n$9\r\nsubscribe\r\n";
        for cut in 0..stream.len() {
            let (mut held, mut passed) = (Vec::new(), Vec::new());
            for piece in [&stream[..cut], &stream[cut..]] {
                held.extend_from_slice(piece);
                passed.extend(without_messages(&mut held));
            }
            assert_eq!(passed, b"+OK\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n", "cut at {cut}");
        }
    }
}
