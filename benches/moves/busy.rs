//! How long the machine's processors worked, for all processes together.

/// In seconds, since the machine started; 0 where there is no /proc. The fields of the first line
/// are user, nice, system, idle, iowait, irq and softirq, in hundredths of a second.
pub(crate) fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    let of = |at: usize| ticks.get(at).copied().unwrap_or(0.0);
    (of(0) + of(1) + of(2) + of(5) + of(6)) / 100.0
}
