//! What a run is measured by, and the line it ends with.

use crate::output::line;
use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant, SystemTime};

/// The clock and this process's CPU time, started together.
pub struct Begun {
    at: Instant,
    cpu: Option<Duration>,
}

impl Begun {
    pub fn now() -> Self {
        Self { cpu: cpu(), at: Instant::now() }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    /// The end, now.
    pub fn ended(&self) -> Spent {
        let took = self.at.elapsed();
        Spent { took, cpu: cpu().zip(self.cpu).map(|(now, then)| now.saturating_sub(then)) }
    }
}

/// What passed between two moments.
#[derive(Clone, Copy)]
pub struct Spent {
    pub took: Duration,
    pub cpu: Option<Duration>,
}

impl Spent {
    /// Prints the line. `calls`: how long single calls took, in any order.
    pub fn report(self, mode: &str, messages: u64, mut calls: Vec<Duration>) -> io::Result<()> {
        let seconds = self.took.as_secs_f64();
        let rate = messages as f64 / seconds.max(1e-9);
        let mut text = format!("{{\"mode\":\"{mode}\",\"msgs\":{messages},\"seconds\":{seconds:.3},\"rate\":{rate:.0}");
        calls.sort_unstable();
        for (name, share) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
            if let Some(call) = calls.get((calls.len() as f64 * share) as usize) {
                let _ = write!(text, ",\"{name}\":{:.1}", call.as_secs_f64() * 1e6);
            }
        }
        if let Some(cpu) = self.cpu {
            let _ = write!(text, ",\"cpu_us_per_msg\":{:.3}", cpu.as_secs_f64() * 1e6 / messages.max(1) as f64);
        }
        text.push('}');
        line(&text)
    }
}

/// User and system time of this process with all its threads, in steps of 10 ms; `None` where there is no `/proc`.
fn cpu() -> Option<Duration> {
    // The second field is the program's name in brackets and may hold spaces.
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Differs from run to run.
pub fn unique() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn cpu_time_is_read_and_grows() {
        let begun = Begun::now();
        let mut sum = 0u64;
        while begun.ended().cpu.unwrap().is_zero() {
            sum = (0..1_000_000u64).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
        }
        assert!(begun.ended().cpu.unwrap() <= begun.ended().took + Duration::from_millis(20));
    }
}
